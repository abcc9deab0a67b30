// One layer's paged cache without a pool.
#pragma once
#include <utility>

#include "bindings/testing/support.h"
#include "threads.h"

namespace twostroke {

KvType kv_type(const std::string& name);

// One layer's blocks, allotted and zeroed by the caller.
class KvCache {
 public:
  KvCache(const std::string& type, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim)
      : num_blocks_(num_blocks), memory_(nullptr, nullptr) {
    require(num_blocks > 0 && num_kv_heads > 0, "a cache has blocks and heads");
    require(head_dim > 0 && head_dim <= 256 && head_dim % 16 == 0,
            "head_dim is a multiple of 16 up to 256");
    layer_.type = kv_type(type);
    layer_.num_kv_heads = num_kv_heads;
    layer_.head_dim = head_dim;
    layer_.head_bytes = kv_head_bytes(layer_.type, head_dim);
    layer_.block_bytes = layer_.head_bytes * num_kv_heads;
    const size_t bytes = static_cast<size_t>(layer_.block_bytes * num_blocks);
    memory_ = aligned_memory<uint8_t>(bytes);
    std::memset(memory_.get(), 0, bytes);
    layer_.base = memory_.get();
  }

  const KvLayer& layer() const { return layer_; }
  int64_t num_blocks() const { return num_blocks_; }

  void append(const std::string& set, int64_t slot, const Matrix& k, const Matrix& v) {
    check_slot(slot);
    for (const Matrix* x : {&k, &v})
      require(static_cast<int64_t>(x->shape(0)) == layer_.num_kv_heads &&
                  static_cast<int64_t>(x->shape(1)) == layer_.head_dim,
              "k and v are [num_kv_heads, head_dim]");
    const FlushDenormals guard;
    find_set(set).kv_append(layer_, slot, k.data(), v.data());
  }

  std::pair<NewFloats, NewFloats> read(const std::string& set, int64_t slot) const {
    check_slot(slot);
    const std::vector<size_t> shape = {static_cast<size_t>(layer_.num_kv_heads),
                                       static_cast<size_t>(layer_.head_dim)};
    auto k = make_array<float>(shape), v = make_array<float>(shape);
    find_set(set).kv_read(k.data(), v.data(), layer_, slot);
    return {k, v};
  }

  void fill_block(int64_t block, int value) {
    check_slot(block * kBlockTokens);
    std::memset(layer_.base + block * layer_.block_bytes, value,
                static_cast<size_t>(layer_.block_bytes));
  }

  nb::bytes block(int64_t block) const {
    check_slot(block * kBlockTokens);
    return nb::bytes(reinterpret_cast<const char*>(layer_.base + block * layer_.block_bytes),
                     static_cast<size_t>(layer_.block_bytes));
  }

 private:
  void check_slot(int64_t slot) const {
    require(slot >= 0 && slot < num_blocks_ * kBlockTokens, "the slot is outside the cache");
  }
  int64_t num_blocks_;
  KvLayer layer_{};
  std::unique_ptr<uint8_t[], void (*)(uint8_t*)> memory_;
};

}  // namespace twostroke
