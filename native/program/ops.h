// The ops of a forward pass: one struct a kind, with the fields of that kind alone. Pointers are
// the caller's and outlive every program that is compiled from them.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "kernels.h"

namespace twostroke {

// Names a buffer: rows of floats that one op writes and later ops read.
using BufferId = int32_t;

// Which rows an op computes: all T tokens of the step, or the R rows whose logits are wanted.
enum class Rows { tokens, wanted };

struct RowTraits {
  const char* name;          // for the profile
  bool is_elementwise;       // a value depends on the values of the same column alone
  bool runs_in_place;        // may write over its first input
  bool reads_own_row_alone;  // a row depends on the same row of its inputs and on nothing else
};

// ---- row ops: computed one row at a time
struct Embed {
  static constexpr RowTraits kTraits{"embed", false, false, false};
  Format format;
  const uint8_t* table;  // [table_rows] rows of row_bytes, in the layout of the GGUF file
  int64_t row_bytes, table_rows;
  float scale;
};
struct RmsNorm {
  static constexpr RowTraits kTraits{"rms_norm", false, true, true};
  const float* weight;  // [width]
  float eps;
};
struct HeadNorm {
  static constexpr RowTraits kTraits{"head_norm", false, true, true};
  const float* weight;  // [head_dim]
  int64_t head_dim;
  float eps;
};
struct Rope {
  static constexpr RowTraits kTraits{"rope", false, true, false};
  int table;  // index of the recording's rotary tables
  int64_t head_dim;
};
struct AppendKv {
  static constexpr RowTraits kTraits{"kv_append", false, false, false};
  int64_t layer;
};
struct Add {
  static constexpr RowTraits kTraits{"add", true, true, true};
};
struct Gated {
  static constexpr RowTraits kTraits{"gated", true, false, true};
  Activation activation;
};
struct SoftCap {
  static constexpr RowTraits kTraits{"soft_cap", true, true, true};
  float cap;
};
struct TakeRows {
  static constexpr RowTraits kTraits{"take_rows", false, false, false};
};
using RowOp = std::variant<Embed, RmsNorm, HeadNorm, Rope, AppendKv, Add, Gated, SoftCap, TakeRows>;

inline const RowTraits& traits_of(const RowOp& op) {
  return std::visit([](const auto& kind) -> const RowTraits& { return kind.kTraits; }, op);
}

// ---- ops that cut all their rows into items together
struct Linear {
  std::string name;                    // for the profile
  std::vector<PackedMatrix> matrices;  // they share the input
  std::vector<const float*> biases;    // one a matrix; null: none
};
struct Attention {
  int64_t layer, num_heads;
  int64_t window;  // 0: all keys
  float scale;
  float soft_cap;  // 0: none
};

struct Op {
  std::variant<RowOp, Linear, Attention> kind;
  Rows rows;
  std::vector<BufferId> inputs, outputs;
};

template <class Kind>
bool is_row_op(const Op& op) {
  const RowOp* row_op = std::get_if<RowOp>(&op.kind);
  return row_op && std::holds_alternative<Kind>(*row_op);
}

}  // namespace twostroke
