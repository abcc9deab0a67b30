// GGUF rows -> panels (block_formats.h). Integers and scales only move, nothing is rounded; every
// kernel set reads the same bytes.
#pragma once
#include <optional>

#include "kernels.h"

namespace twostroke {

bool can_pack(Format);
// Bytes of a packed [n, k] matrix; empty: no kernel reads the format, or no block divides k.
std::optional<int64_t> packed_bytes(Format, int64_t n, int64_t k);
int64_t num_pairs(int64_t n);  // of 16-row panels
// Packs pairs [pair0, pair1) of a matrix that packed_bytes accepts.
void pack_rows(uint8_t* out, Format, const uint8_t* rows, int64_t n, int64_t k, int64_t pair0,
               int64_t pair1);

}  // namespace twostroke
