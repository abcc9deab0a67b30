// Python's door to threads, memory, packed weights, caches and measurements.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <stdexcept>

#include "bindings.h"
#include "kv_pool.h"
#include "measure.h"
#include "threads.h"

namespace nb = nanobind;

namespace twostroke {

namespace {
template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

const KernelTable& table_of(const std::string& name) {
  const KernelTable* table = kernel_set(name.c_str());
  if (!table) fail("kernel set " + name + " is not available here");
  return *table;
}

std::unique_ptr<KvPool> make_kv(const std::string& set, int type, int64_t layers, int64_t heads,
                                int64_t head_dim, int64_t blocks) {
  if (type < 0 || type > 2 || layers < 1 || heads < 1 || head_dim < 1 || blocks < 1)
    fail("a cache needs a known type and positive sizes");
  return std::make_unique<KvPool>(table_of(set), static_cast<KvType>(type), layers, heads, head_dim,
                                  blocks);
}

void read_kv(const KvPool& kv, int64_t layer, int64_t slot, Output<float> k, Output<float> v) {
  const KvLayer at = layer >= 0 && layer < kv.num_layers() ? kv.layer(layer) : KvLayer{};
  if (!at.base || slot < 0 || slot >= kv.num_blocks() * kBlockTokens ||
      static_cast<int64_t>(k.size()) != at.num_kv_heads * at.head_dim || k.size() != v.size())
    fail("no such layer or slot, or outputs of the wrong length");
  kv.kernels().kv_read(k.data(), v.data(), at, slot);
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
  const int64_t bytes = can_pack(format) && n > 0 && k > 0 ? packed_bytes(format, n, k) : -1;
  if (bytes < 0) fail("no packing for this type and shape");
  if (static_cast<int64_t>(out.size()) != bytes || row_bytes < 1 ||
      static_cast<int64_t>(rows.size()) / row_bytes < n)
    fail("source or target of a packing has the wrong length");
  const int64_t pairs = (n + 31) / 32;
  auto pack = [&](int64_t pair, int) {
    pack_rows(out.data(), format, rows.data(), n, k, pair, pair + 1);
  };
  nb::gil_scoped_release release;
  std::lock_guard lock(pool.in_use());
  pool.run_items(pairs, Deal::shares, pack);
}
}  // namespace

void bind_storage(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(
          "__init__",
          [](ThreadPool* self, int threads) {
            if (threads < 1 || threads > 1024) fail("threads must be in [1, 1024]");
            new (self) ThreadPool(threads);
          },
          nb::arg("threads"))
      .def_prop_ro("size", &ThreadPool::size);
  nb::class_<KvPool>(m, "KvPool")
      .def(nb::new_(&make_kv), nb::arg("kernel_set"), nb::arg("kv_type"), nb::arg("num_layers"),
           nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("num_blocks"))
      .def_prop_ro("num_blocks", &KvPool::num_blocks)
      .def_prop_ro("nbytes", &KvPool::bytes)
      .def("read", &read_kv, nb::arg("layer"), nb::arg("slot"), nb::arg("k"), nb::arg("v"));
  m.def(
      "kv_head_bytes",
      [](int type, int64_t head_dim) { return kv_head_bytes(static_cast<KvType>(type), head_dim); },
      nb::arg("kv_type"), nb::arg("head_dim"), "Bytes of K and V of one head in one block.");
  m.def(
      "read_bytes_per_s",
      [](ThreadPool& pool, Array<uint8_t> memory, double seconds) {
        nb::gil_scoped_release release;
        return read_bytes_per_s(pool, memory.data(), static_cast<int64_t>(memory.size()), seconds);
      },
      nb::arg("pool"), nb::arg("memory"), nb::arg("seconds"),
      "Read memory over and over: bytes per second.");
  m.def(
      "peak_ops_per_s",
      [](ThreadPool& pool, const std::string& set, int peak, double seconds) {
        table_of(set);
        if (peak < 0 || peak > 2) fail("a peak is 0 (fp32), 1 (bf16) or 2 (int8)");
        nb::gil_scoped_release release;
        return peak_ops_per_s(pool, set.c_str(), static_cast<Peak>(peak), seconds);
      },
      nb::arg("pool"), nb::arg("kernel_set"), nb::arg("peak"), nb::arg("seconds"),
      "Operations per second of a kernel set's widest loop; 0 where it has none.");
  m.def("huge_array", &huge_array, nb::arg("nbytes"),
        "Zeroed bytes on huge pages where the system has them.");
  m.def(
      "panel_bytes",
      [](int format, int64_t n, int64_t k) -> int64_t {
        const Format f = static_cast<Format>(format);
        return can_pack(f) && n > 0 && k > 0 ? packed_bytes(f, n, k) : -1;
      },
      nb::arg("format"), nb::arg("n"), nb::arg("k"), "Bytes of a packed matrix; -1: not packable.");
  m.def("pack_matrix", &pack_matrix, nb::arg("pool"), nb::arg("out"), nb::arg("format"),
        nb::arg("rows"), nb::arg("n"), nb::arg("k"), nb::arg("row_bytes"));
}

}  // namespace twostroke
