// The forward pass as recorded once: ops over buffers, compiled into flat sections over one arena.
// A step walks the sections on a thread pool, one after the other.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_pool.h"
#include "threads.h"

namespace twostroke {

enum class OpKind {
  embed,
  rms_norm,
  head_norm,
  rope,
  kv_append,
  add,
  gated,
  soft_cap,
  take_rows,
  linear,
  attend
};

// Which rows an op works on: all T tokens of the step, or the R whose logits are wanted.
enum class Rows { tokens, wanted };

using BufferId = int32_t;

// One recorded word of the forward pass. Pointers are the caller's and outlive the program.
struct Op {
  OpKind kind;
  std::vector<BufferId> in, out;
  Rows rows = Rows::tokens;
  std::string name;               // for the profile
  const float* weight = nullptr;  // norms
  float value = 0;                // eps, cap or scale
  Format format = Format::f32;    // embed
  const uint8_t* table = nullptr;
  int64_t row_bytes = 0, table_rows = 0;
  int64_t heads = 0, head_dim = 0, layer = 0, window = 0;
  float soft_cap = 0;
  int rope = 0;
  Activation activation = Activation::silu;
  std::vector<PackedMatrix> mats;
  std::vector<const float*> biases;
};

// Rows of floats between ops; lives in the arena from the section that writes it to the last
// reader.
struct Buffer {
  int64_t width, ld;  // values, and floats from row to row
  Rows rows;
  BufferId alias = -1;  // the buffer whose memory this one takes over in place
  int first = -1, last = -1;
  size_t bytes = 0, offset = 0;
  float* data = nullptr;
};

// Rows as a linear kernel wants them, stored behind the op that made them.
struct Acts {
  BufferId source;
  ActKind kind;
  int first = -1, last = -1;
  size_t bytes = 0, offset = 0;
  uint8_t* data = nullptr;
};

// One row-wise op with its pointers resolved.
struct Stage {
  OpKind kind;
  const Op* op;
  BufferId out_id, x_id, y_id;
  float* out;
  const float* x;
  const float* y;
  int64_t width, ldo, ldx, ldy;
};

// Matrices that share activations of one kind.
struct LinearGroup {
  int acts;
  std::vector<BufferId> out_ids;
  std::vector<PackedMatrix> mats;
  std::vector<float*> outs;
  std::vector<int64_t> ldo;
  std::vector<const float*> biases;
  LinearCall call;
  int64_t items = 0;
};

enum class SectionKind { prepare_kv, rows, linear, attend, sample };

// What all threads do before any goes on.
struct Section {
  SectionKind kind;
  Rows rows = Rows::tokens;
  std::string label;
  std::vector<Stage> stages;  // rows
  std::vector<int> acts;      // rows: stored after the stages, all of one tiling
  bool elementwise = true;
  int64_t width = 0;
  std::vector<LinearGroup> groups;  // linear
  Stage attend{};                   // attend
  int plan = -1;
  double seconds = 0;  // profile
  int64_t calls = 0;
};

// Work list of attention layers that see the same heads and window.
struct AttentionPlan {
  int64_t heads, window;
  std::vector<AttentionItem> items;
  int64_t count = 0;
};

struct RopeTable {
  std::vector<float> cos, sin;  // [positions, pairs]
  int64_t positions = 0, pairs = 0;
  bool interleaved = false;
};

// What one step computes. Shapes: T tokens, S requests, R wanted rows.
struct StepInputs {
  int64_t num_tokens, num_seqs, num_rows;
  const int32_t* token_ids;     // [T]
  const int32_t* positions;     // [T]
  const int64_t* slots;         // [T]
  const int32_t* cu_seqlens_q;  // [S + 1]
  const int32_t* context_lens;  // [S]
  const int32_t* block_tables;  // [S, table_stride]
  int64_t table_stride;
  const int32_t* logit_rows;  // [R]
  const SampleRow* samples;   // [R] or null: no sampling
  const int32_t* new_blocks;
  int64_t num_new_blocks;
  const BlockCopy* copies;
  int64_t num_copies;
};

struct StepOutputs {
  SampleResult* samples;  // [R]
  float* logits;          // [R, V] or null
};

struct ProfileLine {
  std::string label;
  double seconds;
  int64_t calls;
};

class Program {
 public:
  Program(const KernelTable&, int64_t max_tokens, int64_t max_rows);

  // Recording, in order of execution. Widths are those of the outputs.
  std::vector<BufferId> record(Op op, const std::vector<int64_t>& widths);
  BufferId record(Op op, int64_t width) { return record(std::move(op), std::vector{width})[0]; }
  int64_t width(BufferId id) const { return buffers_.at(id).width; }
  int add_rope(int64_t pairs, bool interleaved);
  // Ends recording; `logits` is what a step samples from.
  void compile(BufferId logits);

  void set_rope(int id, const float* cos, const float* sin, int64_t positions, int64_t pairs);
  int64_t rope_positions() const;
  // Raises std::invalid_argument with what is wrong: a step that passes is safe to run.
  void check(const StepInputs&, const KvPool&) const;
  void step(ThreadPool&, KvPool&, const StepInputs&, const StepOutputs&);

  int64_t max_tokens() const { return max_tokens_; }
  int64_t vocab() const { return buffers_.at(logits_).width; }
  size_t arena_bytes() const { return arena_ ? arena_->bytes() : 0; }
  size_t num_sections() const { return sections_.size(); }
  void set_profile(bool on) { profiling_ = on; }
  std::vector<ProfileLine> take_profile();

 private:
  // compile.cpp
  void narrow_to_wanted();
  void build_sections();
  void add_row_op(const Op&);
  void add_linear(const Op&);
  void add_attention(const Op&);
  Section& row_section(Rows);
  int acts_for(const Op&, BufferId source, ActKind);
  bool same_tiles(ActKind, ActKind) const;
  void find_lifetimes();
  void alias_in_place();
  void place_arena();
  void resolve();

  // sections.cpp
  struct Walk;
  void begin(Walk&);
  bool advance(Walk&);
  int64_t prepare(Walk&, Section&);
  int64_t prepare_attention(Walk&, Section&);
  void run_item(Walk&, Section&, int64_t item, int thread);
  void run_rows(Walk&, Section&, int64_t item);
  void run_stage(Walk&, const Stage&, int64_t row, int64_t begin, int64_t end);
  void run_linear(Section&, int64_t item, int thread);
  void run_attention(Walk&, Section&, int64_t item, int thread);
  void run_sample(Walk&, int64_t item, int thread);
  int64_t rows_of(const Walk&, Rows) const;
  AttentionCall attention_call(const Walk&, const Section&) const;
  void reserve_scratch(Walk&, int threads);
  void plan_attention(Walk&);

  const KernelTable& kernels_;
  const int64_t max_tokens_, max_rows_;
  std::vector<Op> ops_;
  std::vector<Buffer> buffers_;
  std::vector<Acts> acts_;
  std::vector<Section> sections_;
  std::vector<AttentionPlan> plans_;
  std::vector<RopeTable> ropes_;
  BufferId logits_ = -1;
  bool has_last_rows_section_ = false;
  std::unique_ptr<HugeMemory> arena_;

  std::mutex busy_;
  std::vector<std::unique_ptr<HugeMemory>> scratch_;  // one a thread
  std::vector<float> partials_;
  std::vector<int32_t> done_;
  std::vector<AttentionSeq> seqs_;
  bool profiling_ = false;
};

}  // namespace twostroke
