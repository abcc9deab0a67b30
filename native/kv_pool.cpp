#include "kv_pool.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace twostroke {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

size_t product(int64_t a, int64_t b, int64_t c) {
  size_t total;
  if (__builtin_mul_overflow(static_cast<size_t>(a), static_cast<size_t>(b), &total) ||
      __builtin_mul_overflow(total, static_cast<size_t>(c), &total))
    throw std::bad_alloc();
  return total;
}
}  // namespace

HugeMemory::HugeMemory(size_t bytes) : data_(nullptr), bytes_(bytes), mapped_(bytes + kHugePage) {
  if (mapped_ < bytes) throw std::bad_alloc();
  void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  // Aligned to a huge page: the memory before it goes back to the system.
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(p) % kHugePage) % kHugePage;
  if (skip) munmap(p, skip);
  data_ = static_cast<uint8_t*>(p) + skip;
  mapped_ -= skip;
#ifdef MADV_HUGEPAGE
  madvise(data_, mapped_, MADV_HUGEPAGE);
#endif
}

HugeMemory::~HugeMemory() { munmap(data_, mapped_); }

KvPool::KvPool(const KernelTable& kernels, KvType type, int64_t num_layers, int64_t num_kv_heads,
               int64_t head_dim, int64_t num_blocks)
    : kernels_(kernels),
      type_(type),
      num_layers_(num_layers),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      num_blocks_(num_blocks),
      head_bytes_(kv_head_bytes(type, head_dim)),
      block_bytes_(head_bytes_ * num_kv_heads),
      memory_(product(num_layers, num_blocks, block_bytes_)),
      used_(static_cast<size_t>(num_blocks)),
      zeros_(static_cast<size_t>(num_kv_heads * head_dim)) {}

KvLayer KvPool::layer(int64_t index) const {
  uint8_t* base = memory_.data() + index * block_bytes_;
  return {type_, num_kv_heads_, head_dim_, head_bytes_, num_layers_ * block_bytes_, base};
}

std::vector<int32_t> KvPool::take_stale(const int32_t* ids, int64_t count) {
  std::vector<int32_t> stale;
  for (int64_t i = 0; i < count; i++) {
    if (used_[ids[i]]) stale.push_back(ids[i]);
    used_[ids[i]] = 1;
  }
  return stale;
}

void KvPool::zero(int64_t index, const int32_t* ids, int64_t count) {
  const KvLayer kv = layer(index);
  for (int64_t i = 0; i < count; i++)
    std::memset(kv.base + ids[i] * kv.block_bytes, 0, block_bytes_);
}

void KvPool::copy(int64_t index, const BlockCopy& copy) {
  const KvLayer kv = layer(index);
  std::memcpy(kv.base + copy.target * kv.block_bytes, kv.base + copy.source * kv.block_bytes,
              block_bytes_);
  for (int64_t i = copy.num_tokens; i < kBlockTokens; i++)
    kernels_.kv_append(kv, copy.target * kBlockTokens + i, zeros_.data(), zeros_.data());
}

}  // namespace twostroke
