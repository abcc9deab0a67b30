#include "program/step_run.h"

#include <algorithm>
#include <cstring>

namespace twostroke {

StepMemory::StepMemory(const Program& program) : attention(program.attention_shapes.size()) {
  size_t most = 0;
  for (const Section& section : program.sections)
    if (const auto* linear = std::get_if<LinearSection>(&section.work))
      most = std::max(most, linear->groups.size());
  calls.reserve(most);
  call_items.reserve(most);
}

void StepMemory::reserve_scratch(size_t threads, size_t bytes_each) {
  if (scratch.size() < threads) scratch.resize(threads);
  for (auto& each : scratch)
    if (!each || each->bytes() < bytes_each)
      each = std::make_unique<HugeMemory>(bytes_each + bytes_each / 4 + 64);
}

StepRun::StepRun(const Program& program, StepMemory& memory, const std::vector<RopeTable>& ropes,
                 Profile* profile, ThreadPool& pool, KvPool& kv, const StepInputs& in,
                 const StepOutputs& out)
    : program_(program),
      kernels_(program.kernels),
      memory_(memory),
      ropes_(ropes),
      profile_(profile),
      pool_(pool),
      kv_(kv),
      in_(in),
      out_(out),
      stale_blocks_(kv.take_stale(in.new_blocks, in.num_new_blocks)),
      rows_at_once_(std::min(in.num_rows, program.max_rows)) {
  for (int64_t i = 0; i < in.num_tokens; i++) kv.mark_used(in.slots[i] / kBlockTokens);
  for (int64_t i = 0; i < in.num_copies; i++) kv.mark_used(in.copies[i].target);
  plan_attention();
  memory.reserve_scratch(static_cast<size_t>(pool.size()), scratch_bytes());
  if (profile) profile->start();
}

// The most that any section of this step asks for.
size_t StepRun::scratch_bytes() const {
  size_t most = kernels_.sample_scratch_bytes(program_.vocab_size);
  for (const Section& section : program_.sections) {
    const int64_t rows = num_rows(section.rows);
    if (const auto* linear = std::get_if<LinearSection>(&section.work)) {
      for (const LinearGroup& group : linear->groups)
        if (rows) most = std::max(most, kernels_.linear_scratch_bytes(call_of(group, rows)));
    } else if (const auto* attention = std::get_if<AttentionSection>(&section.work)) {
      if (in_.num_seqs)
        most = std::max(most, kernels_.attention_scratch_bytes(call_of(*attention)));
    }
  }
  return most;
}

// Moves on; false at the end of the step. Sections on wanted rows repeat while rows are left.
bool StepRun::next_section() {
  if (!has_begun_) {
    has_begun_ = true;
    return true;
  }
  if (++section_ < program_.sections.size()) return true;
  first_row_ += rows_at_once_;
  rows_at_once_ = std::min(in_.num_rows - first_row_, program_.max_rows);
  section_ = program_.first_wanted_section;
  return rows_at_once_ > 0;
}

bool StepRun::advance() {
  if (profile_ && has_begun_) profile_->end_section(section_);
  while (next_section()) {
    const int64_t items =
        std::visit([&](const auto& work) { return prepare(work); }, section().work);
    if (items > 1 && pool_.size() > 1) {
      const bool is_attention = std::holds_alternative<AttentionSection>(section().work);
      pool_.start_section(items, is_attention ? Schedule::shared_queue : Schedule::work_stealing);
      return true;
    }
    for (int64_t i = 0; i < items; i++) item(i, 0);
    if (profile_ && items) profile_->end_section(section_);
  }
  return false;
}

void StepRun::item(int64_t item, int thread) {
  std::visit([&](const auto& work) { run(work, item, thread); }, section().work);
}

int64_t StepRun::prepare(const PrepareKvSection&) {
  return stale_blocks_.empty() && !in_.num_copies ? 0 : kv_.num_layers();
}

void StepRun::run(const PrepareKvSection&, int64_t layer, int) {
  kv_.zero(layer, stale_blocks_.data(), static_cast<int64_t>(stale_blocks_.size()));
  for (int64_t i = 0; i < in_.num_copies; i++) kv_.copy(layer, in_.copies[i]);
}

LinearCall StepRun::call_of(const LinearGroup& group, int64_t rows) const {
  return {rows,
          group.matrices[0].k,
          program_.activations[group.activations].data,
          static_cast<int64_t>(group.matrices.size()),
          group.matrices.data(),
          group.outs.data(),
          group.ldo.data(),
          group.biases.data(),
          pool_.size(),
          group.next};
}

int64_t StepRun::prepare(const LinearSection& linear) {
  const int64_t rows = num_rows(section().rows);
  memory_.calls.clear();
  memory_.call_items.clear();
  if (!rows) return 0;
  int64_t items = 0;
  for (const LinearGroup& group : linear.groups) {
    memory_.calls.push_back(call_of(group, rows));
    memory_.call_items.push_back(kernels_.linear_items(memory_.calls.back()));
    items += memory_.call_items.back();
  }
  return items;
}

void StepRun::run(const LinearSection&, int64_t item, int thread) {
  size_t call = 0;
  for (; item >= memory_.call_items[call]; call++) item -= memory_.call_items[call];
  kernels_.linear_run(memory_.calls[call], item, scratch(thread));
}

int64_t StepRun::prepare(const SampleSection&) {
  return out_.logits || in_.samples ? num_rows(Rows::wanted) : 0;
}

void StepRun::run(const SampleSection&, int64_t item, int thread) {
  const int64_t vocab_size = program_.vocab_size, row = first_row_ + item;
  const float* logits = program_.logits.row(item);
  if (out_.logits)
    std::memcpy(out_.logits + row * vocab_size, logits,
                static_cast<size_t>(vocab_size) * sizeof(float));
  if (in_.samples)
    kernels_.sample(out_.samples + row, logits, vocab_size, in_.samples[row], scratch(thread));
}

}  // namespace twostroke
