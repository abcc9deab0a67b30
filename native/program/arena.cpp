#include <algorithm>

#include "program/compile.h"

namespace twostroke {

namespace {
constexpr size_t kAlignment = 256;  // of pieces; also the slack that a vector read may run over

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Piece {
  Lifetime lifetime;
  size_t bytes;
  size_t* offset;
};

std::vector<Piece> pieces_of(Draft& draft) {
  std::vector<Piece> pieces;
  for (PlacedBuffer& buffer : draft.buffers) {
    if (buffer.shares || !buffer.lifetime) continue;
    const int64_t floats = draft.max_rows(buffer.shape.rows) * buffer.ld;
    pieces.push_back({*buffer.lifetime, static_cast<size_t>(floats) * 4, &buffer.offset});
  }
  for (PlacedActivations& stored : draft.placed_activations)
    pieces.push_back({stored.lifetime, stored.bytes, &stored.offset});
  return pieces;
}

// The lowest offset where `piece` fits between those that live; sorts them by offset.
size_t first_fit(const Piece& piece, std::vector<Piece>& live) {
  std::sort(live.begin(), live.end(),
            [](const Piece& a, const Piece& b) { return *a.offset < *b.offset; });
  size_t offset = 0;
  for (const Piece& other : live) {
    if (offset + piece.bytes + kAlignment <= *other.offset) break;
    offset = std::max(offset, aligned(*other.offset + other.bytes + kAlignment));
  }
  return offset;
}

}  // namespace

void place_in_arena(Draft& draft) {
  std::vector<Piece> pieces = pieces_of(draft), live;
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.lifetime.first < b.lifetime.first;
  });
  size_t total = 0;
  for (const Piece& piece : pieces) {
    std::erase_if(live, [&](const Piece& p) { return p.lifetime.last < piece.lifetime.first; });
    *piece.offset = first_fit(piece, live);
    live.push_back(piece);
    total = std::max(total, *piece.offset + piece.bytes + kAlignment);
  }
  draft.arena_bytes = total + kAlignment;
}

}  // namespace twostroke
