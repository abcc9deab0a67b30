// GGUF rows -> panels; filled with the linear kernels.
#include "kernels.h"
namespace twostroke {
bool can_pack(Format) { return false; }
int64_t packed_bytes(Format, int64_t, int64_t) { return -1; }
void pack_rows(uint8_t*, Format, const uint8_t*, int64_t, int64_t, int64_t, int64_t) {}
}  // namespace twostroke
