// Measurements of this machine's peaks for Python.
#include "measure.h"

#include <nanobind/stl/string.h>

#include "bindings/arrays.h"

namespace twostroke {

namespace {
double read_rate(ThreadPool& pool, Array<uint8_t> memory, double seconds) {
  nb::gil_scoped_release release;
  return read_bytes_per_s(pool, memory.data(), static_cast<int64_t>(memory.size()), seconds);
}

double peak_rate(ThreadPool& pool, const std::string& kernel_set, int peak, double seconds) {
  const KernelTable& table = table_of(kernel_set);
  if (peak < 0 || peak > 2) fail("a peak is 0 (fp32), 1 (bf16) or 2 (int8)");
  nb::gil_scoped_release release;
  return peak_ops_per_s(pool, table.name, static_cast<Peak>(peak), seconds);
}
}  // namespace

void bind_measure(nb::module_& m) {
  m.def("read_bytes_per_s", &read_rate, nb::arg("pool"), nb::arg("memory"), nb::arg("seconds"),
        "Read memory over and over: bytes per second.");
  m.def("peak_ops_per_s", &peak_rate, nb::arg("pool"), nb::arg("kernel_set"), nb::arg("peak"),
        nb::arg("seconds"),
        "Operations per second of a kernel set's widest loop; 0 where it has none.");
}

}  // namespace twostroke
