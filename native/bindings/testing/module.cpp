// The module twostroke._native_testing: single kernels for tests and benchmarks. Wheels lack it.
#include "bindings/arrays.h"

namespace twostroke {
void bind_packing(nb::module_&);    // packing.cpp
void bind_linear(nb::module_&);     // linear.cpp
void bind_attention(nb::module_&);  // attention.cpp
void bind_rows(nb::module_&);       // rows.cpp
void bind_sample(nb::module_&);     // sample.cpp
void bind_cache(nb::module_&);      // cache.cpp
}  // namespace twostroke

NB_MODULE(_native_testing, m) {
  m.doc() = "Single kernels of twostroke, one call at a time, for tests and benchmarks.";
  twostroke::bind_packing(m);
  twostroke::bind_linear(m);
  twostroke::bind_cache(m);
  twostroke::bind_attention(m);
  twostroke::bind_rows(m);
  twostroke::bind_sample(m);
}
