// The bytes of the paged KV cache; the caller hands out block ids. Block b, layer l, KV head h lie
// at base + (b * layers + l) * block_bytes + h * head_bytes. All layers of a block lie side by
// side, so that a step touches few new pages: a new huge page for each layer would cost it 0.2 s.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace twostroke {

// Anonymous zeroed memory on huge pages where the system has them.
class HugeMemory {
 public:
  // Raises std::bad_alloc when the system refuses.
  explicit HugeMemory(size_t bytes);
  ~HugeMemory();
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_, mapped_;
};

struct BlockCopy {
  int32_t source, target, num_tokens;
};

class KvPool {
 public:
  KvPool(const KernelTable&, KvType, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
         int64_t num_blocks);

  KvLayer layer(int64_t index) const;
  int64_t num_layers() const { return num_layers_; }
  int64_t num_blocks() const { return num_blocks_; }
  size_t bytes() const { return memory_.bytes(); }
  const KernelTable& kernels() const { return kernels_; }

  // Marks the blocks used. Returns those that were used before: the others are zero already.
  std::vector<int32_t> take_stale(const int32_t* ids, int64_t count);
  void mark_used(int64_t block) { used_[block] = 1; }
  void zero(int64_t layer, const int32_t* ids, int64_t count);
  // Copies the first tokens of a block; the rest of the target becomes zeros.
  void copy(int64_t layer, const BlockCopy&);

 private:
  const KernelTable& kernels_;
  const KvType type_;
  const int64_t num_layers_, num_kv_heads_, head_dim_, num_blocks_;
  const int64_t head_bytes_, block_bytes_;
  HugeMemory memory_;
  std::vector<uint8_t> used_;  // [num_blocks]
  std::vector<float> zeros_;   // one token's K or V
};

}  // namespace twostroke
