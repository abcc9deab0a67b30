// The module twostroke._native: what an engine uses at run time.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"

namespace twostroke {
void bind_storage(nb::module_&);   // storage.cpp: threads, memory, packed weights, KV cache
void bind_recorder(nb::module_&);  // recorder.cpp
void bind_program(nb::module_&);   // program.cpp
void bind_measure(nb::module_&);   // measure.cpp: this machine's peaks
}  // namespace twostroke

NB_MODULE(_native, m) {
  m.doc() = "Native library of twostroke: packed weights, paged KV cache, recorded programs.";
  m.def(
      "kernel_sets",
      [] {
        std::vector<std::string> names;
        for (auto set = twostroke::kernel_sets(); *set; set++) names.emplace_back((*set)->name);
        return names;
      },
      "Names of the kernel sets this CPU runs, best first.");
  twostroke::bind_storage(m);
  twostroke::bind_program(m);
  twostroke::bind_recorder(m);
  twostroke::bind_measure(m);
}
