// Blocks of quantised GGUF rows: for each format its bytes, its integers and its scales. Everything
// has internal linkage, because files with different instruction-set flags include this.
// Source: the layouts of ggml-common.h.
#pragma once
#include <stdint.h>
#include <string.h>

#include "block_formats.h"

namespace twostroke {
namespace {

inline uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value;
  memcpy(&value, bytes, 2);
  return value;
}

inline uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  memcpy(&value, bytes, 4);
  return value;
}

inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// No denormal floats on the way, so that flush-to-zero modes cannot change a small scale.
inline float float_from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude < 0x400) {
    const float value = float_from_bits(0x3f000000 + magnitude) - 0.5f;
    return sign ? -value : value;
  }
  const uint32_t rebias = magnitude < 0x7c00 ? 112u << 23 : 224u << 23;
  return float_from_bits(sign | ((magnitude << 13) + rebias));
}

inline float load_half(const uint8_t* bytes) { return float_from_half(load_u16(bytes)); }

// value = scale[half] * (q - zero) + minimum[half]; half is 0 for the first 16 values of a group.
struct GroupScales {
  float scale[2], minimum[2];
  int zero;
};

inline void low_then_high_nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int i = 0; i < 16; i++) {
    q[i] = bytes[i] & 15;
    q[i + 16] = bytes[i] >> 4;
  }
}

struct Q4_0Block {
  static constexpr int kBytes = 18, kGroups = 1;
  static const uint8_t* nibbles(const uint8_t* b, int) { return b + 2; }
  static void integers(const uint8_t* b, int, uint8_t* q) { low_then_high_nibbles(b + 2, q); }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b);
    return {{d, d}, {0, 0}, 8};
  }
};

struct Q4_1Block {
  static constexpr int kBytes = 20, kGroups = 1;
  static const uint8_t* nibbles(const uint8_t* b, int) { return b + 4; }
  static void integers(const uint8_t* b, int, uint8_t* q) { low_then_high_nibbles(b + 4, q); }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b), m = load_half(b + 2);
    return {{d, d}, {m, m}, 0};
  }
};

inline void add_bit4(uint32_t bits, uint8_t* q) {
  for (int i = 0; i < 32; i++) q[i] |= uint8_t((bits >> i & 1) << 4);
}

struct Q5_0Block {
  static constexpr int kBytes = 22, kGroups = 1;
  static const uint8_t* nibbles(const uint8_t* b, int) { return b + 6; }
  static void integers(const uint8_t* b, int, uint8_t* q) {
    low_then_high_nibbles(b + 6, q);
    add_bit4(load_u32(b + 2), q);
  }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b);
    return {{d, d}, {0, 0}, 16};
  }
};

struct Q5_1Block {
  static constexpr int kBytes = 24, kGroups = 1;
  static const uint8_t* nibbles(const uint8_t* b, int) { return b + 8; }
  static void integers(const uint8_t* b, int, uint8_t* q) {
    low_then_high_nibbles(b + 8, q);
    add_bit4(load_u32(b + 4), q);
  }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b), m = load_half(b + 2);
    return {{d, d}, {m, m}, 0};
  }
};

struct Q8_0Block {
  static constexpr int kBytes = 34, kGroups = 1;
  static void integers(const uint8_t* b, int, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = b[2 + i] ^ 0x80;
  }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b);
    return {{d, d}, {0, 0}, 128};
  }
};

struct Q2KBlock {
  static constexpr int kBytes = 84, kGroups = 8;
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = b[16 + g / 4 * 32 + i] >> (g % 4 * 2) & 3;
  }
  static uint8_t scale_min(const uint8_t* b, int g, int half) { return b[2 * g + half]; }
  static GroupScales scales(const uint8_t* b, int g) {
    const float d = load_half(b + 80), dmin = load_half(b + 82);
    GroupScales s{{}, {}, 0};
    for (int half = 0; half < 2; half++) {
      s.scale[half] = d * float(scale_min(b, g, half) & 15);
      s.minimum[half] = -(dmin * float(scale_min(b, g, half) >> 4));
    }
    return s;
  }
};

struct Q3KBlock {
  static constexpr int kBytes = 110, kGroups = 8;
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    for (int i = 0; i < 32; i++)
      q[i] = uint8_t((b[32 + g / 4 * 32 + i] >> (g % 4 * 2) & 3) | (b[i] >> g & 1) << 2);
  }
  static int8_t scale(const uint8_t* b, int g, int half) {  // 4 low bits, then 2 high bits, of 16
    const uint8_t* packed = b + 96;
    const int j = 2 * g + half;
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    return int8_t((low | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
  }
  static GroupScales scales(const uint8_t* b, int g) {
    const float d = load_half(b + 108);
    return {{d * float(scale(b, g, 0)), d * float(scale(b, g, 1))}, {0, 0}, 4};
  }
};

// Six-bit scales and minima of Q4_K and Q5_K: eight of each in twelve bytes.
inline uint8_t six_bit_scale(const uint8_t* packed, int g) {
  return g < 4 ? packed[g] & 63 : uint8_t((packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4);
}
inline uint8_t six_bit_minimum(const uint8_t* packed, int g) {
  return g < 4 ? packed[g + 4] & 63 : uint8_t(packed[g + 4] >> 4 | (packed[g] >> 6) << 4);
}

struct Q4KBlock {
  static constexpr int kBytes = 144, kGroups = 8;
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = b[16 + g / 2 * 32 + i] >> (g % 2 * 4) & 15;
  }
  static GroupScales scales(const uint8_t* b, int g) {
    const float s = load_half(b) * float(six_bit_scale(b + 4, g));
    const float m = -(load_half(b + 2) * float(six_bit_minimum(b + 4, g)));
    return {{s, s}, {m, m}, 0};
  }
};

struct Q5KBlock {
  static constexpr int kBytes = 176, kGroups = 8;
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    for (int i = 0; i < 32; i++)
      q[i] = uint8_t((b[48 + g / 2 * 32 + i] >> (g % 2 * 4) & 15) | (b[16 + i] >> g & 1) << 4);
  }
  static GroupScales scales(const uint8_t* b, int g) { return Q4KBlock::scales(b, g); }
};

struct Q6KBlock {
  static constexpr int kBytes = 210, kGroups = 8;
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    const uint8_t* low = b + g / 4 * 64 + g % 2 * 32;
    const uint8_t* high = b + 128 + g / 4 * 32;
    const int low_shift = g % 4 / 2 * 4, high_shift = g % 4 * 2;
    for (int i = 0; i < 32; i++)
      q[i] = uint8_t((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4);
  }
  static int8_t scale(const uint8_t* b, int g, int half) { return int8_t(b[192 + 2 * g + half]); }
  static GroupScales scales(const uint8_t* b, int g) {
    const float d = load_half(b + 208);
    return {{d * float(scale(b, g, 0)), d * float(scale(b, g, 1))}, {0, 0}, 32};
  }
};

struct Iq4NlBlock {  // integers are indices into the codebook
  static constexpr int kBytes = 18, kGroups = 1;
  static const uint8_t* nibbles(const uint8_t* b, int) { return b + 2; }
  static void integers(const uint8_t* b, int, uint8_t* q) { low_then_high_nibbles(b + 2, q); }
  static GroupScales scales(const uint8_t* b, int) {
    const float d = load_half(b);
    return {{d, d}, {0, 0}, 0};
  }
};

struct Iq4XsBlock {
  static constexpr int kBytes = 136, kGroups = 8;
  static const uint8_t* nibbles(const uint8_t* b, int g) { return b + 8 + 16 * g; }
  static void integers(const uint8_t* b, int g, uint8_t* q) {
    low_then_high_nibbles(nibbles(b, g), q);
  }
  static int8_t scale(const uint8_t* b, int g) {
    const int low = b[4 + g / 2] >> (g % 2 * 4) & 15, high = load_u16(b + 2) >> (2 * g) & 3;
    return int8_t((low | high << 4) - 32);
  }
  static GroupScales scales(const uint8_t* b, int g) {
    const float s = load_half(b) * float(scale(b, g));
    return {{s, s}, {0, 0}, 0};
  }
};

}  // namespace
}  // namespace twostroke
