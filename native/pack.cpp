#include "pack.h"

#include "pack_units.h"

namespace twostroke {
namespace {

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

int64_t num_pairs(int64_t n) { return (n + kPairRows - 1) / kPairRows; }

std::optional<int64_t> packed_bytes(Format format, int64_t n, int64_t k) {
  const Packing p = packing_of(format);
  if (!p.pack || n <= 0 || k <= 0 || (!p.pads_k && k % p.unit_values)) return std::nullopt;
  return num_pairs(n) * ((k + p.unit_values - 1) / p.unit_values) * p.unit_bytes;
}

void pack_rows(uint8_t* out, Format format, const uint8_t* rows, int64_t n, int64_t k,
               int64_t pair0, int64_t pair1) {
  packing_of(format).pack(out, rows, n, k, pair0, pair1);
}

}  // namespace twostroke
