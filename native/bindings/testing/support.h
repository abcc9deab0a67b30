// Helpers that the bindings of single kernels share. Only tests and benchmarks load them.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "bindings/arrays.h"

namespace twostroke {

using Matrix = Array<float, 2>;
using Vector = Array<float>;
using NewFloats = nb::ndarray<nb::numpy, float>;

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) fail(otherwise);
}

// A kernel set or one of its variants.
inline const KernelTable& find_set(const std::string& name) {
  const KernelTable* table = kernel_set(name.c_str());
  if (!table) table = kernel_variant(name.c_str());
  require(table != nullptr, "no kernel set '" + name + "' on this CPU");
  return *table;
}

// A new array of zeros for Python.
template <class T>
nb::ndarray<nb::numpy, T> make_array(const std::vector<size_t>& shape) {
  size_t count = 1;
  for (size_t n : shape) count *= n;
  T* data = new T[count]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner);
}

// Zeroed memory aligned to a cache line.
template <class T>
using Aligned = std::unique_ptr<T[], void (*)(T*)>;
template <class T>
Aligned<T> aligned_memory(size_t count) {
  const size_t bytes = (count * sizeof(T) + 64) / 64 * 64;
  void* p = std::aligned_alloc(64, bytes);
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return {static_cast<T*>(p), [](T* q) { std::free(q); }};
}

}  // namespace twostroke
