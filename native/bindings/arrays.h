// Arrays and kernel sets as Python passes them; only bindings/ knows Python.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "kernels.h"

namespace twostroke {

namespace nb = nanobind;

template <class T, size_t N = 1>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N = 1>
using Output = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// Raises ValueError in Python.
[[noreturn]] inline void fail(const std::string& what) { throw std::invalid_argument(what); }

inline const KernelTable& table_of(const std::string& kernel_set) {
  const KernelTable* table = twostroke::kernel_set(kernel_set.c_str());
  if (!table) fail("kernel set " + kernel_set + " is not available here");
  return *table;
}

}  // namespace twostroke
