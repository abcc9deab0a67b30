// Packed weight formats: one struct a format, size asserted, layout in comments.
//
// A matrix [n, k] is cut into pairs of 16-row panels, 32 rows side by side, and each pair into
// units of 32 (or 256) values of k. Units follow each other, pairs follow each other: the whole
// matrix is one sequential stream. Rows past n are zero. Inside a group of 32 values a line holds
// four consecutive values (a quad) of each of the 32 rows: byte [4 * row + i]. Integers are
// unsigned, as stored in the file; the kernels subtract zero points and minima. Nothing is rounded.
#pragma once
#include <cstddef>
#include <cstdint>

namespace twostroke {

constexpr int64_t kPairRows = 32;     // rows of a pair of panels
constexpr int64_t kGroupValues = 32;  // values of k that share an activation scale
constexpr int64_t kLineBytes = 128;   // a quad of values, or one plane of bits, of 32 rows

// 4-bit line j of a group: value 4j + i in the low nibble, value 4(j + 4) + i in the high one.
using NibbleLines = uint8_t[4][kLineBytes];
// 2-bit line h: bits 2q..2q+1 of a byte belong to value 4(4h + q) + i.
using CrumbLines = uint8_t[2][kLineBytes];
// 1-bit line: bit q of a byte belongs to value 4q + i.
using BitLine = uint8_t[kLineBytes];
using HalfRow = uint16_t[kPairRows];  // one float16 a row
using ByteRow = uint8_t[kPairRows];
using SignedRow = int8_t[kPairRows];

// ---- 32 values a unit
struct Q4_0Unit {  // d * (q - 8); also IQ4_NL: d * codebook[q]
  NibbleLines nibbles;
  HalfRow d;
};
struct Q4_1Unit {  // d * q + m
  NibbleLines nibbles;
  HalfRow d, m;
};
struct Q5_0Unit {  // d * (q - 16)
  NibbleLines nibbles;
  BitLine bit4;
  HalfRow d;
};
struct Q5_1Unit {  // d * q + m
  NibbleLines nibbles;
  BitLine bit4;
  HalfRow d, m;
};
struct Q8_0Unit {  // d * (q - 128): bytes are stored with the sign bit flipped
  uint8_t bytes[8][kLineBytes];
  HalfRow d;
};

// ---- 256 values a unit: 8 groups
struct Q2KUnit {  // per 16 values: d * scale * q - dmin * minimum
  CrumbLines crumbs[8];
  ByteRow scale_min[8][2];  // scale in the low nibble, minimum in the high one
  HalfRow d, dmin;
};
struct Q3KUnit {  // per 16 values: d * scale * (q - 4)
  struct {
    CrumbLines crumbs;
    BitLine bit2;
  } groups[8];
  SignedRow scale[8][2];
  HalfRow d;
};
struct Q4KUnit {  // per 32 values: d * scale * q - dmin * minimum
  NibbleLines nibbles[8];
  ByteRow scale[8], minimum[8];
  HalfRow d, dmin;
};
struct Q5KUnit {  // as Q4_K
  struct {
    NibbleLines nibbles;
    BitLine bit4;
  } groups[8];
  ByteRow scale[8], minimum[8];
  HalfRow d, dmin;
};
struct Q6KUnit {  // per 16 values: d * scale * (q - 32)
  struct {
    NibbleLines nibbles;
    CrumbLines bits45;
  } groups[8];
  SignedRow scale[8][2];
  HalfRow d;
};
struct Iq4XsUnit {  // per 32 values: d * scale * codebook[q]
  NibbleLines nibbles[8];
  SignedRow scale[8];
  HalfRow d;
};

// ---- floats, 32 values a unit
struct F32Unit {
  float values[kGroupValues][kPairRows];
};
struct F16Unit {
  uint16_t values[kGroupValues][kPairRows];
};
struct Bf16Unit {  // pairs of values side by side, as the bf16 dot product reads them
  uint16_t values[kGroupValues / 2][kPairRows][2];
};

static_assert(sizeof(Q4_0Unit) == 576);
static_assert(sizeof(Q4_1Unit) == 640);
static_assert(sizeof(Q5_0Unit) == 704);
static_assert(sizeof(Q5_1Unit) == 768);
static_assert(sizeof(Q8_0Unit) == 1088);
static_assert(sizeof(Q2KUnit) == 2688);
static_assert(sizeof(Q3KUnit) == 3648);
static_assert(sizeof(Q4KUnit) == 4736);
static_assert(sizeof(Q5KUnit) == 5760);
static_assert(sizeof(Q6KUnit) == 6720);
static_assert(sizeof(Iq4XsUnit) == 4416);
static_assert(sizeof(F32Unit) == 4096);
static_assert(sizeof(F16Unit) == 2048);
static_assert(sizeof(Bf16Unit) == 2048);

// Source: ggml-common.h, kvalues_iq4nl.
constexpr int8_t kIq4Codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace twostroke
