// Threads, memory, packed weights and the KV cache for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "bindings/arrays.h"
#include "kv_pool.h"
#include "pack.h"
#include "threads.h"

namespace twostroke {

namespace {
std::unique_ptr<KvPool> make_kv(const std::string& set, int type, int64_t layers, int64_t heads,
                                int64_t head_dim, int64_t blocks) {
  if (type < 0 || type > 2 || layers < 1 || heads < 1 || head_dim < 1 || blocks < 1)
    fail("a cache needs a known type and positive sizes");
  return std::make_unique<KvPool>(table_of(set), static_cast<KvType>(type), layers, heads, head_dim,
                                  blocks);
}

// Zeroed bytes on huge pages, owned by the array.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> huge_array(int64_t bytes) {
  if (bytes < 1) fail("an array needs at least a byte");
  auto memory = std::make_unique<HugeMemory>(static_cast<size_t>(bytes));
  uint8_t* data = memory->data();
  nb::capsule owner(memory.release(), [](void* p) noexcept { delete static_cast<HugeMemory*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {static_cast<size_t>(bytes)}, owner);
}

// Repacks a matrix from its GGUF rows; pairs of panels are spread over the threads.
void pack_matrix(ThreadPool& pool, Output<uint8_t> out, int id, Array<uint8_t> rows, int64_t n,
                 int64_t k, int64_t row_bytes) {
  const Format format = static_cast<Format>(id);
  const std::optional<int64_t> bytes = packed_bytes(format, n, k);
  if (!bytes) fail("no packing for this type and shape");
  if (static_cast<int64_t>(out.size()) != *bytes || row_bytes < 1 ||
      static_cast<int64_t>(rows.size()) / row_bytes < n)
    fail("source or target of a packing has the wrong length");
  auto pack = [&](int64_t pair, int) {
    pack_rows(out.data(), format, rows.data(), n, k, pair, pair + 1);
  };
  nb::gil_scoped_release release;
  std::lock_guard lock(pool.in_use());
  pool.run_items(num_pairs(n), Schedule::work_stealing, pack);
}

void bind_memory(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(
          "__init__",
          [](ThreadPool* self, int threads) {
            if (threads < 1 || threads > 1024) fail("threads must be in [1, 1024]");
            new (self) ThreadPool(threads);
          },
          nb::arg("threads"))
      .def_prop_ro("size", &ThreadPool::size);
  m.def("huge_array", &huge_array, nb::arg("nbytes"),
        "Zeroed bytes on huge pages where the system has them.");
}

void bind_kv(nb::module_& m) {
  nb::class_<KvPool>(m, "KvPool")
      .def(nb::new_(&make_kv), nb::arg("kernel_set"), nb::arg("kv_type"), nb::arg("num_layers"),
           nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("num_blocks"))
      .def_prop_ro("num_blocks", &KvPool::num_blocks)
      .def_prop_ro("nbytes", &KvPool::bytes);
  m.def(
      "kv_head_bytes",
      [](int type, int64_t head_dim) { return kv_head_bytes(static_cast<KvType>(type), head_dim); },
      nb::arg("kv_type"), nb::arg("head_dim"), "Bytes of K and V of one head in one block.");
}

void bind_packing(nb::module_& m) {
  m.def(
      "packed_bytes",
      [](int format, int64_t n, int64_t k) {
        return packed_bytes(static_cast<Format>(format), n, k);
      },
      nb::arg("format"), nb::arg("n"), nb::arg("k"),
      "Bytes of a packed matrix; None where it cannot be packed.");
  m.def("pack_matrix", &pack_matrix, nb::arg("pool"), nb::arg("out"), nb::arg("format"),
        nb::arg("rows"), nb::arg("n"), nb::arg("k"), nb::arg("row_bytes"));
}
}  // namespace

void bind_storage(nb::module_& m) {
  bind_memory(m);
  bind_kv(m);
  bind_packing(m);
}

}  // namespace twostroke
