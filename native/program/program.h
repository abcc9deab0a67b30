// A compiled forward pass: sections over one arena of buffers. A step runs the sections one after
// the other; the threads of a pool share the items of each. Nothing here changes after compile().
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv_pool.h"
#include "program/ops.h"

namespace twostroke {

// One buffer as an op reads or writes it. The compiler sets data and ld with the arena.
struct Operand {
  BufferId buffer;
  float* data = nullptr;
  int64_t ld = 0;  // floats from row to row

  float* row(int64_t index) const { return data + index * ld; }
};

// Activations in the form that some linear kernels read, stored once for all of them.
struct StoredActivations {
  ActKind kind;
  Operand source;
  int64_t width;
  uint8_t* data = nullptr;
};

// One row op with the operands that its kind has: `y` is the second input.
struct RowStage {
  RowOp op;
  int64_t width;
  std::optional<Operand> out, x, y;
};

// Zeros reused blocks and copies shared ones; an item is a layer.
struct PrepareKvSection {};

// A chain of row ops, then the activations stored of its results; an item is a tile of rows.
struct RowSection {
  std::vector<RowStage> stages;
  std::vector<int> stores;  // indices of Program::activations, all with the same tiles
  int64_t width = 0;
  bool is_elementwise = true;  // an item may be a range of columns instead
};

// Matrices that read the same stored activations.
struct LinearGroup {
  int activations;  // index of Program::activations
  std::vector<PackedMatrix> matrices;
  std::vector<const float*> biases;
  std::vector<Operand> outputs;
  std::vector<float*> outs;
  std::vector<int64_t> ldo;
  const uint8_t* next = nullptr;  // first bytes of the matrix read after these, for prefetch
};
struct LinearSection {
  std::vector<LinearGroup> groups;
};

struct AttentionSection {
  Attention op;
  Operand q, out;
  int shape;  // index of Program::attention_shapes
};

// Copies logits out and chooses tokens; an item is a wanted row.
struct SampleSection {};

// Work that all threads finish before any thread goes on to the next section.
struct Section {
  Rows rows;
  std::string label;  // for the profile
  std::variant<PrepareKvSection, RowSection, LinearSection, AttentionSection, SampleSection> work;
};

// Attention sections of one shape share one list of items in a step.
struct AttentionShape {
  int64_t num_heads, window;
  size_t first_section;  // a section of this shape
};

struct RopeShape {
  int64_t pairs;
  bool interleaved;
};

struct Program {
  const KernelTable& kernels;
  int64_t max_tokens, max_rows;    // of a step; wanted rows that are computed at once
  int64_t vocab_size, num_layers;  // width of the logits; layers that the cache must have
  int64_t num_embeddings;          // token ids are below it
  std::vector<Section> sections;
  size_t first_wanted_section;  // from it on, sections repeat while wanted rows are left
  std::vector<StoredActivations> activations;
  std::vector<AttentionShape> attention_shapes;
  std::vector<RopeShape> ropes;
  Operand logits;
  HugeMemory arena;
};

}  // namespace twostroke
