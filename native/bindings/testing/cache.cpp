// Reading and writing cached keys and values for tests.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bindings/testing/kv_cache.h"
#include "kv_pool.h"

namespace twostroke {

KvType kv_type(const std::string& name) {
  if (name == "bf16") return KvType::bf16;
  if (name == "f16") return KvType::f16;
  require(name == "q8", "a KV type is bf16, f16 or q8, not '" + name + "'");
  return KvType::q8;
}

namespace {
// Shapes: k and v [num_kv_heads * head_dim]
void read_kv(const KvPool& kv, int64_t layer, int64_t slot, Output<float> k, Output<float> v) {
  require(layer >= 0 && layer < kv.num_layers(), "no such layer");
  const KvLayer at = kv.layer(layer);
  require(slot >= 0 && slot < kv.num_blocks() * kBlockTokens, "no such slot");
  require(static_cast<int64_t>(k.size()) == at.num_kv_heads * at.head_dim && k.size() == v.size(),
          "outputs of the wrong length");
  kv.kernels().kv_read(k.data(), v.data(), at, slot);
}
}  // namespace

void bind_cache(nb::module_& m) {
  using nb::arg;
  nb::class_<KvCache>(m, "KvCache", "One layer's paged cache.")
      .def(nb::init<const std::string&, int64_t, int64_t, int64_t>(), arg("type"),
           arg("num_blocks"), arg("num_kv_heads"), arg("head_dim"))
      .def("append", &KvCache::append, arg("kernel_set"), arg("slot"), arg("k"), arg("v"))
      .def("read", &KvCache::read, arg("kernel_set"), arg("slot"))
      .def("fill_block", &KvCache::fill_block, arg("block"), arg("value"))
      .def("block", &KvCache::block, arg("block"));
  m.def("read_kv", &read_kv, arg("pool"), arg("layer"), arg("slot"), arg("k"), arg("v"),
        "Fill k and v with one slot of an engine's KvPool, as stored.");
}

}  // namespace twostroke
