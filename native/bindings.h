// Python bindings, one function per area; only bindings*.cpp know Python.
#pragma once
#include <nanobind/nanobind.h>

namespace twostroke {
void bind_linear(nanobind::module_&);  // bindings_linear.cpp: packing, one linear layer (for tests
                                       // and benchmarks)
void bind_attention(
    nanobind::module_&);  // bindings_attention.cpp: cache, attention, rows, sampling (likewise)
void bind_program(nanobind::module_&);  // bindings_program.cpp: the recorded forward pass
void bind_storage(
    nanobind::module_&);  // bindings_storage.cpp: threads, memory, packing, caches, measurements
}  // namespace twostroke
