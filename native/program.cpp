// Recording, and the checks that make a step safe to run.
#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace twostroke {

Program::Program(const KernelTable& kernels, int64_t max_tokens, int64_t max_rows)
    : kernels_(kernels), max_tokens_(max_tokens), max_rows_(std::min(max_rows, max_tokens)) {}

std::vector<BufferId> Program::record(Op op, const std::vector<int64_t>& widths) {
  if (logits_ >= 0) throw std::invalid_argument("the program is compiled: nothing can be added");
  for (BufferId id : op.in)
    if (id < 0 || id >= static_cast<BufferId>(buffers_.size()))
      throw std::invalid_argument("an op reads a buffer that no op wrote");
  op.rows = op.kind == OpKind::take_rows ? Rows::wanted
            : op.in.empty()              ? Rows::tokens
                                         : buffers_[op.in[0]].rows;
  for (int64_t width : widths) {
    op.out.push_back(static_cast<BufferId>(buffers_.size()));
    Buffer buffer{};
    buffer.width = width;
    buffer.ld = (width + 31) / 32 * 32;
    buffer.rows = op.rows;
    buffers_.push_back(buffer);
  }
  ops_.push_back(std::move(op));
  return ops_.back().out;
}

int Program::add_rope(int64_t pairs, bool interleaved) {
  RopeTable table;
  table.pairs = pairs;
  table.interleaved = interleaved;
  ropes_.push_back(std::move(table));
  return static_cast<int>(ropes_.size()) - 1;
}

std::vector<ProfileLine> Program::take_profile() {
  std::vector<ProfileLine> lines;
  for (Section& section : sections_) {
    if (!section.calls) continue;
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const ProfileLine& l) { return l.label == section.label; });
    if (line == lines.end()) line = lines.insert(lines.end(), {section.label, 0, 0});
    line->seconds += section.seconds;
    line->calls += section.calls;
    section.seconds = 0;
    section.calls = 0;
  }
  return lines;
}

void Program::set_rope(int id, const float* cos, const float* sin, int64_t positions,
                       int64_t pairs) {
  std::lock_guard lock(busy_);
  RopeTable& table = ropes_.at(static_cast<size_t>(id));
  if (pairs != table.pairs) throw std::invalid_argument("a rope table has the wrong width");
  table.cos.assign(cos, cos + positions * table.pairs);
  table.sin.assign(sin, sin + positions * table.pairs);
  table.positions = positions;
}

int64_t Program::rope_positions() const {
  int64_t positions = INT64_MAX;
  for (const RopeTable& table : ropes_) positions = std::min(positions, table.positions);
  return positions;
}

void Program::check(const StepInputs& in, const KvPool& kv) const {
  auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (logits_ < 0) fail("the program is not compiled");
  if (&kv.kernels() != &kernels_) fail("the cache belongs to another kernel set");
  if (in.num_tokens > max_tokens_)
    fail("a step of " + std::to_string(in.num_tokens) + " tokens exceeds the program's " +
         std::to_string(max_tokens_));
  if (in.cu_seqlens_q[0] != 0 || in.cu_seqlens_q[in.num_seqs] != in.num_tokens)
    fail("cu_seqlens_q does not run from 0 to the number of tokens");
  int64_t table_rows = INT64_MAX, layers = 0;
  for (const Op& op : ops_) {
    if (op.kind == OpKind::embed) table_rows = std::min(table_rows, op.table_rows);
    if (op.kind == OpKind::attend) layers = std::max(layers, op.layer + 1);
  }
  if (layers > kv.num_layers()) fail("the cache has fewer layers than the program");
  const int64_t positions = rope_positions(), blocks = kv.num_blocks();
  for (int64_t i = 0; i < in.num_tokens; i++) {
    if (in.token_ids[i] < 0 || in.token_ids[i] >= table_rows)
      fail("a token id is outside the vocabulary");
    if (in.positions[i] < 0 || in.positions[i] >= positions)
      fail("a position is outside the rope table");
    if (in.slots[i] < 0 || in.slots[i] >= blocks * kBlockTokens)
      fail("a slot is outside the cache");
  }
  for (int64_t s = 0; s < in.num_seqs; s++) {
    const int64_t nq = in.cu_seqlens_q[s + 1] - in.cu_seqlens_q[s], len = in.context_lens[s];
    if (nq < 1 || len < nq) fail("a request has no tokens, or a context shorter than its tokens");
    const int64_t used = (len + kBlockTokens - 1) / kBlockTokens;
    if (used > in.table_stride) fail("a context is longer than its block table");
    for (int64_t b = 0; b < used; b++) {
      const int32_t id = in.block_tables[s * in.table_stride + b];
      if (id < 0 || id >= blocks) fail("a block id is outside the cache");
    }
  }
  for (int64_t r = 0; r < in.num_rows; r++)
    if (in.logit_rows[r] < 0 || in.logit_rows[r] >= in.num_tokens)
      fail("a logit row is outside the step");
  for (int64_t i = 0; i < in.num_new_blocks; i++)
    if (in.new_blocks[i] < 0 || in.new_blocks[i] >= blocks)
      fail("a new block is outside the cache");
  for (int64_t i = 0; i < in.num_copies; i++) {
    const BlockCopy& c = in.copies[i];
    if (c.source < 0 || c.source >= blocks || c.target < 0 || c.target >= blocks ||
        c.num_tokens < 0 || c.num_tokens > kBlockTokens)
      fail("a block copy is outside the cache");
  }
}

}  // namespace twostroke
