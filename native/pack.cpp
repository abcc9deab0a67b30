// GGUF rows -> panels. Integers and scales only move, nothing is rounded; every kernel set reads
// the same bytes.
#include <cstring>

#include "gguf_blocks.h"
#include "kernels.h"

namespace twostroke {
namespace {

void store_u32(uint8_t* out, uint32_t value) { std::memcpy(out, &value, 4); }

// The 16 bytes of nibbles of one row (value i low, value i + 16 high) into the four lines.
void put_nibbles(NibbleLines& lines, int row, const uint8_t* nibbles) {
  for (int j = 0; j < 4; j++) std::memcpy(&lines[j][4 * row], nibbles + 4 * j, 4);
}

void put_low_nibbles(NibbleLines& lines, int row, const uint8_t* q) {
  uint8_t nibbles[16];
  for (int i = 0; i < 16; i++) nibbles[i] = uint8_t((q[i] & 15) | q[i + 16] << 4);
  put_nibbles(lines, row, nibbles);
}

// Bit `bit` of all 32 integers of a row.
void put_bit(BitLine& line, int row, const uint8_t* q, int bit) {
  uint32_t plane = 0;
  for (int quad = 0; quad < 8; quad++)
    plane |= (load_u32(q + 4 * quad) >> bit & 0x01010101u) << quad;
  store_u32(&line[4 * row], plane);
}

// Bits `bit` and `bit + 1` of all 32 integers of a row.
void put_crumbs(CrumbLines& lines, int row, const uint8_t* q, int bit) {
  for (int half = 0; half < 2; half++) {
    uint32_t plane = 0;
    for (int quad = 0; quad < 4; quad++)
      plane |= (load_u32(q + 16 * half + 4 * quad) >> bit & 0x03030303u) << (2 * quad);
    store_u32(&lines[half][4 * row], plane);
  }
}

void put(Q4_0Unit& unit, int row, const uint8_t* b) {
  put_nibbles(unit.nibbles, row, Q4_0Block::nibbles(b, 0));
  unit.d[row] = load_u16(b);
}

void put(Q4_1Unit& unit, int row, const uint8_t* b) {
  put_nibbles(unit.nibbles, row, Q4_1Block::nibbles(b, 0));
  unit.d[row] = load_u16(b);
  unit.m[row] = load_u16(b + 2);
}

void put(Q5_0Unit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  Q5_0Block::integers(b, 0, q);
  put_nibbles(unit.nibbles, row, Q5_0Block::nibbles(b, 0));
  put_bit(unit.bit4, row, q, 4);
  unit.d[row] = load_u16(b);
}

void put(Q5_1Unit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  Q5_1Block::integers(b, 0, q);
  put_nibbles(unit.nibbles, row, Q5_1Block::nibbles(b, 0));
  put_bit(unit.bit4, row, q, 4);
  unit.d[row] = load_u16(b);
  unit.m[row] = load_u16(b + 2);
}

void put(Q8_0Unit& unit, int row, const uint8_t* b) {
  for (int quad = 0; quad < 8; quad++)
    store_u32(&unit.bytes[quad][4 * row], load_u32(b + 2 + 4 * quad) ^ 0x80808080u);
  unit.d[row] = load_u16(b);
}

void put(Q2KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q2KBlock::integers(b, g, q);
    put_crumbs(unit.crumbs[g], row, q, 0);
    for (int half = 0; half < 2; half++)
      unit.scale_min[g][half][row] = Q2KBlock::scale_min(b, g, half);
  }
  unit.d[row] = load_u16(b + 80);
  unit.dmin[row] = load_u16(b + 82);
}

void put(Q3KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q3KBlock::integers(b, g, q);
    put_crumbs(unit.groups[g].crumbs, row, q, 0);
    put_bit(unit.groups[g].bit2, row, q, 2);
    for (int half = 0; half < 2; half++) unit.scale[g][half][row] = Q3KBlock::scale(b, g, half);
  }
  unit.d[row] = load_u16(b + 108);
}

void put(Q4KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q4KBlock::integers(b, g, q);
    put_low_nibbles(unit.nibbles[g], row, q);
    unit.scale[g][row] = six_bit_scale(b + 4, g);
    unit.minimum[g][row] = six_bit_minimum(b + 4, g);
  }
  unit.d[row] = load_u16(b);
  unit.dmin[row] = load_u16(b + 2);
}

void put(Q5KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q5KBlock::integers(b, g, q);
    put_low_nibbles(unit.groups[g].nibbles, row, q);
    put_bit(unit.groups[g].bit4, row, q, 4);
    unit.scale[g][row] = six_bit_scale(b + 4, g);
    unit.minimum[g][row] = six_bit_minimum(b + 4, g);
  }
  unit.d[row] = load_u16(b);
  unit.dmin[row] = load_u16(b + 2);
}

void put(Q6KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q6KBlock::integers(b, g, q);
    put_low_nibbles(unit.groups[g].nibbles, row, q);
    put_crumbs(unit.groups[g].bits45, row, q, 4);
    for (int half = 0; half < 2; half++) unit.scale[g][half][row] = Q6KBlock::scale(b, g, half);
  }
  unit.d[row] = load_u16(b + 208);
}

void put(Iq4XsUnit& unit, int row, const uint8_t* b) {
  for (int g = 0; g < 8; g++) {
    put_nibbles(unit.nibbles[g], row, Iq4XsBlock::nibbles(b, g));
    unit.scale[g][row] = Iq4XsBlock::scale(b, g);
  }
  unit.d[row] = load_u16(b);
}

// Pairs [pair0, pair1) of a matrix of quantised blocks.
template <class Unit, class Block>
void pack_blocks(uint8_t* out, const uint8_t* rows, int64_t n, int64_t k, int64_t pair0,
                 int64_t pair1) {
  const int64_t blocks = k / (kGroupValues * Block::kGroups), row_bytes = blocks * Block::kBytes;
  for (int64_t pair = pair0; pair < pair1; pair++) {
    auto* units = reinterpret_cast<Unit*>(out) + pair * blocks;
    const int64_t row0 = pair * kPairRows;
    const int count = int(n - row0 < kPairRows ? n - row0 : kPairRows);
    if (count < kPairRows) std::memset(units, 0, size_t(blocks) * sizeof(Unit));
    for (int64_t block = 0; block < blocks; block++)
      for (int row = 0; row < count; row++)
        put(units[block], row, rows + (row0 + row) * row_bytes + block * Block::kBytes);
  }
}

void put_values(F32Unit& unit, int row, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i++) unit.values[i][row] = x[i];
}

void put_values(F16Unit& unit, int row, const uint16_t* x, int64_t count) {
  for (int64_t i = 0; i < count; i++) unit.values[i][row] = x[i];
}

void put_values(Bf16Unit& unit, int row, const uint16_t* x, int64_t count) {
  for (int64_t i = 0; i < count; i++) unit.values[i / 2][row][i % 2] = x[i];
}

// Pairs [pair0, pair1) of a matrix of plain values; k of any length, filled up with zeros.
template <class Unit, class Value>
void pack_values(uint8_t* out, const uint8_t* rows, int64_t n, int64_t k, int64_t pair0,
                 int64_t pair1) {
  const int64_t groups = (k + kGroupValues - 1) / kGroupValues;
  for (int64_t pair = pair0; pair < pair1; pair++) {
    auto* units = reinterpret_cast<Unit*>(out) + pair * groups;
    const int64_t row0 = pair * kPairRows;
    const int count = int(n - row0 < kPairRows ? n - row0 : kPairRows);
    if (count < kPairRows || k % kGroupValues) std::memset(units, 0, size_t(groups) * sizeof(Unit));
    for (int64_t g = 0; g < groups; g++)
      for (int row = 0; row < count; row++) {
        const int64_t first = g * kGroupValues;
        const int64_t length = k - first < kGroupValues ? k - first : kGroupValues;
        Value values[kGroupValues];
        std::memcpy(values, rows + ((row0 + row) * k + first) * int64_t(sizeof(Value)),
                    size_t(length) * sizeof(Value));
        put_values(units[g], row, values, length);
      }
  }
}

using PackFn = void (*)(uint8_t*, const uint8_t*, int64_t, int64_t, int64_t, int64_t);

struct Packing {
  PackFn pack;         // null: not a format of the kernels
  int64_t unit_bytes;  // of one pair
  int64_t unit_values;
  bool pads_k;  // k need not be a multiple of unit_values
};

template <class Unit, class Block>
constexpr Packing blocks_packing() {
  return {pack_blocks<Unit, Block>, sizeof(Unit), kGroupValues * Block::kGroups, false};
}

template <class Unit, class Value>
constexpr Packing values_packing() {
  return {pack_values<Unit, Value>, sizeof(Unit), kGroupValues, true};
}

Packing packing_of(Format format) {
  switch (format) {
    case Format::f32:
      return values_packing<F32Unit, float>();
    case Format::f16:
      return values_packing<F16Unit, uint16_t>();
    case Format::bf16:
      return values_packing<Bf16Unit, uint16_t>();
    case Format::q4_0:
      return blocks_packing<Q4_0Unit, Q4_0Block>();
    case Format::q4_1:
      return blocks_packing<Q4_1Unit, Q4_1Block>();
    case Format::q5_0:
      return blocks_packing<Q5_0Unit, Q5_0Block>();
    case Format::q5_1:
      return blocks_packing<Q5_1Unit, Q5_1Block>();
    case Format::q8_0:
      return blocks_packing<Q8_0Unit, Q8_0Block>();
    case Format::q2_k:
      return blocks_packing<Q2KUnit, Q2KBlock>();
    case Format::q3_k:
      return blocks_packing<Q3KUnit, Q3KBlock>();
    case Format::q4_k:
      return blocks_packing<Q4KUnit, Q4KBlock>();
    case Format::q5_k:
      return blocks_packing<Q5KUnit, Q5KBlock>();
    case Format::q6_k:
      return blocks_packing<Q6KUnit, Q6KBlock>();
    case Format::iq4_nl:
      return blocks_packing<Q4_0Unit, Iq4NlBlock>();
    case Format::iq4_xs:
      return blocks_packing<Iq4XsUnit, Iq4XsBlock>();
  }
  return {nullptr, 0, 0, false};
}

}  // namespace

bool can_pack(Format format) { return packing_of(format).pack != nullptr; }

int64_t packed_bytes(Format format, int64_t n, int64_t k) {
  const Packing p = packing_of(format);
  if (!p.pack || n <= 0 || k <= 0 || (!p.pads_k && k % p.unit_values)) return -1;
  const int64_t pairs = (n + kPairRows - 1) / kPairRows;
  return pairs * ((k + p.unit_values - 1) / p.unit_values) * p.unit_bytes;
}

void pack_rows(uint8_t* out, Format format, const uint8_t* rows, int64_t n, int64_t k,
               int64_t pair0, int64_t pair1) {
  packing_of(format).pack(out, rows, n, k, pair0, pair1);
}

}  // namespace twostroke
