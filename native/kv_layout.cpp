// Sizes of the paged cache: the same for every kernel set.
#include "kernels.h"

namespace twostroke {

// bf16 and f16: two bytes a value. q8: one byte a value and, per K and V part, 16 float scales.
int64_t kv_head_bytes(KvType type, int64_t head_dim) {
  const int64_t values = 2 * kBlockTokens * head_dim;
  return type == KvType::q8 ? values + 2 * kBlockTokens * 4 : values * 2;
}

}  // namespace twostroke
