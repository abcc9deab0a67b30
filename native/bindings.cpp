// The module twostroke._native.
#include "bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kernels.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of twostroke: packed weights, paged attention, recorded programs.";
  m.def(
      "kernel_sets",
      [] {
        std::vector<std::string> names;
        for (auto set = twostroke::kernel_sets(); *set; set++) names.emplace_back((*set)->name);
        return names;
      },
      "Names of the kernel sets this CPU runs, best first.");
  twostroke::bind_linear(m);
  twostroke::bind_attention(m);
  twostroke::bind_program(m);
}
