// One step of a program: the threads of a pool run its sections; the thread that ends a section
// prepares the next one, and runs it alone where it is too small to share.
#pragma once
#include <memory>
#include <vector>

#include "program/profile.h"
#include "program/step.h"
#include "threads.h"

namespace twostroke {

struct RopeTable {
  std::vector<float> cos, sin;  // [positions, pairs]
  int64_t positions = 0;
};

// Items of the attention sections of one shape, those of highest cost first.
struct AttentionPlan {
  std::vector<AttentionItem> items;
  int64_t count = 0;
};

// Memory that the steps of a program use one after the other. It grows to the largest step.
struct StepMemory {
  explicit StepMemory(const Program&);
  void reserve_scratch(size_t threads, size_t bytes_each);

  std::vector<std::unique_ptr<HugeMemory>> scratch;  // one a thread
  std::vector<LinearCall> calls;                     // of the linear section being run
  std::vector<int64_t> call_items;                   // of each of its calls
  std::vector<AttentionPlan> attention;              // by Program::attention_shapes
  std::vector<AttentionSeq> seqs;                    // [S] of the attention section being run
  std::vector<float> partials;                       // what splits leave to be combined
  std::vector<int32_t> splits_done;                  // [S, num_kv_heads]
};

class StepRun final : public Job {
 public:
  // `profile` null: none is taken.
  StepRun(const Program&, StepMemory&, const std::vector<RopeTable>&, Profile* profile, ThreadPool&,
          KvPool&, const StepInputs&, const StepOutputs&);
  void run() { pool_.run(*this); }

  void item(int64_t item, int thread) override;
  bool advance() override;

 private:
  // How a row section is cut: by tiles of rows, or one tile by columns.
  struct RowCut {
    int64_t tile_rows = 0;  // without stored activations, whose tiles are the kernels' own
    int64_t columns = 0;    // of an item; 0: all
  };
  struct Columns {
    int64_t begin, end;
  };

  int64_t num_rows(Rows rows) const {
    return rows == Rows::tokens ? in_.num_tokens : rows_at_once_;
  }
  const Section& section() const { return program_.sections[section_]; }
  void* scratch(int thread) const { return memory_.scratch[thread]->data(); }
  bool next_section();
  void run_alone(int64_t items);

  // Each returns the number of items.
  int64_t prepare(const PrepareKvSection&);
  int64_t prepare(const RowSection&);
  int64_t prepare(const LinearSection&);
  int64_t prepare(const AttentionSection&);
  int64_t prepare(const SampleSection&);

  void run(const PrepareKvSection&, int64_t item, int thread);
  void run(const RowSection&, int64_t item, int thread);
  void run(const LinearSection&, int64_t item, int thread);
  void run(const AttentionSection&, int64_t item, int thread);
  void run(const SampleSection&, int64_t item, int thread);

  // step_rows.cpp
  void run_stage(const RowStage&, int64_t row, Columns) const;
  // step_attention.cpp
  void plan_attention();
  void point_at_rows(const AttentionSection&);
  AttentionCall call_of(const AttentionSection&) const;
  // step_run.cpp
  LinearCall call_of(const LinearGroup&, int64_t rows) const;
  size_t scratch_bytes() const;

  const Program& program_;
  const KernelTable& kernels_;
  StepMemory& memory_;
  const std::vector<RopeTable>& ropes_;
  Profile* const profile_;
  ThreadPool& pool_;
  KvPool& kv_;
  const StepInputs& in_;
  const StepOutputs& out_;

  std::vector<int32_t> stale_blocks_;  // new blocks that hold bytes of an earlier owner
  size_t section_ = 0;                 // the one being run
  bool has_begun_ = false;
  int64_t first_row_ = 0;  // wanted rows [first_row_, first_row_ + rows_at_once_) are computed
  int64_t rows_at_once_ = 0;
  RowCut row_cut_;
};

}  // namespace twostroke
