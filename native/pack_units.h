// One row's block of a GGUF tensor -> its places in a unit of packed weights, by format.
#pragma once
#include <cstring>

#include "gguf_blocks.h"

namespace twostroke {
namespace {

inline void store_u32(uint8_t* out, uint32_t value) { std::memcpy(out, &value, 4); }

// The 16 bytes of nibbles of one row (value i low, value i + 16 high) into the four lines.
inline void put_nibbles(NibbleLines& lines, int row, const uint8_t* nibbles) {
  for (int j = 0; j < 4; j++) std::memcpy(&lines[j][4 * row], nibbles + 4 * j, 4);
}

inline void put_low_nibbles(NibbleLines& lines, int row, const uint8_t* q) {
  uint8_t nibbles[16];
  for (int i = 0; i < 16; i++) nibbles[i] = uint8_t((q[i] & 15) | q[i + 16] << 4);
  put_nibbles(lines, row, nibbles);
}

// Bit `bit` of all 32 integers of a row.
inline void put_bit(BitLine& line, int row, const uint8_t* q, int bit) {
  uint32_t plane = 0;
  for (int quad = 0; quad < 8; quad++)
    plane |= (load_u32(q + 4 * quad) >> bit & 0x01010101u) << quad;
  store_u32(&line[4 * row], plane);
}

// Bits `bit` and `bit + 1` of all 32 integers of a row.
inline void put_crumbs(CrumbLines& lines, int row, const uint8_t* q, int bit) {
  for (int half = 0; half < 2; half++) {
    uint32_t plane = 0;
    for (int quad = 0; quad < 4; quad++)
      plane |= (load_u32(q + 16 * half + 4 * quad) >> bit & 0x03030303u) << (2 * quad);
    store_u32(&lines[half][4 * row], plane);
  }
}

inline void put(Q4_0Unit& unit, int row, const uint8_t* b) {
  put_nibbles(unit.nibbles, row, Q4_0Block::nibbles(b, 0));
  unit.d[row] = load_u16(b);
}

inline void put(Q4_1Unit& unit, int row, const uint8_t* b) {
  put_nibbles(unit.nibbles, row, Q4_1Block::nibbles(b, 0));
  unit.d[row] = load_u16(b);
  unit.m[row] = load_u16(b + 2);
}

inline void put(Q5_0Unit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  Q5_0Block::integers(b, 0, q);
  put_nibbles(unit.nibbles, row, Q5_0Block::nibbles(b, 0));
  put_bit(unit.bit4, row, q, 4);
  unit.d[row] = load_u16(b);
}

inline void put(Q5_1Unit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  Q5_1Block::integers(b, 0, q);
  put_nibbles(unit.nibbles, row, Q5_1Block::nibbles(b, 0));
  put_bit(unit.bit4, row, q, 4);
  unit.d[row] = load_u16(b);
  unit.m[row] = load_u16(b + 2);
}

inline void put(Q8_0Unit& unit, int row, const uint8_t* b) {
  for (int quad = 0; quad < 8; quad++)
    store_u32(&unit.bytes[quad][4 * row], load_u32(b + 2 + 4 * quad) ^ 0x80808080u);
  unit.d[row] = load_u16(b);
}

inline void put(Q2KUnit& unit, int row, const uint8_t* b) {
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

inline void put(Q3KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q3KBlock::integers(b, g, q);
    put_crumbs(unit.groups[g].crumbs, row, q, 0);
    put_bit(unit.groups[g].bit2, row, q, 2);
    for (int half = 0; half < 2; half++) unit.scale[g][half][row] = Q3KBlock::scale(b, g, half);
  }
  unit.d[row] = load_u16(b + 108);
}

// Scales and minima of Q4_K and Q5_K.
template <class Unit>
inline void put_six_bit_scales(Unit& unit, int row, const uint8_t* b) {
  for (int g = 0; g < 8; g++) {
    unit.scale[g][row] = six_bit_scale(b + 4, g);
    unit.minimum[g][row] = six_bit_minimum(b + 4, g);
  }
  unit.d[row] = load_u16(b);
  unit.dmin[row] = load_u16(b + 2);
}

inline void put(Q4KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q4KBlock::integers(b, g, q);
    put_low_nibbles(unit.nibbles[g], row, q);
  }
  put_six_bit_scales(unit, row, b);
}

inline void put(Q5KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q5KBlock::integers(b, g, q);
    put_low_nibbles(unit.groups[g].nibbles, row, q);
    put_bit(unit.groups[g].bit4, row, q, 4);
  }
  put_six_bit_scales(unit, row, b);
}

inline void put(Q6KUnit& unit, int row, const uint8_t* b) {
  uint8_t q[32];
  for (int g = 0; g < 8; g++) {
    Q6KBlock::integers(b, g, q);
    put_low_nibbles(unit.groups[g].nibbles, row, q);
    put_crumbs(unit.groups[g].bits45, row, q, 4);
    for (int half = 0; half < 2; half++) unit.scale[g][half][row] = Q6KBlock::scale(b, g, half);
  }
  unit.d[row] = load_u16(b + 208);
}

inline void put(Iq4XsUnit& unit, int row, const uint8_t* b) {
  for (int g = 0; g < 8; g++) {
    put_nibbles(unit.nibbles[g], row, Iq4XsBlock::nibbles(b, g));
    unit.scale[g][row] = Iq4XsBlock::scale(b, g);
  }
  unit.d[row] = load_u16(b);
}

}  // namespace
}  // namespace twostroke
