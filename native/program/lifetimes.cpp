#include <algorithm>

#include "program/compile.h"

namespace twostroke {

namespace {

void extend(std::optional<Lifetime>& lifetime, size_t section) {
  if (!lifetime) lifetime = Lifetime{section, section};
  lifetime->last = std::max(lifetime->last, section);
}

// By buffer: the last op that reads it.
std::vector<std::optional<size_t>> last_readers(const Recording& recording) {
  std::vector<std::optional<size_t>> readers(recording.buffers.size());
  for (size_t i = 0; i < recording.ops.size(); i++)
    for (BufferId id : recording.ops[i].inputs) readers[id] = i;
  return readers;
}

bool may_run_in_place(const Op& op) {
  const RowOp* row_op = std::get_if<RowOp>(&op.kind);
  if (!row_op || !traits_of(*row_op).runs_in_place) return false;
  return op.inputs.size() < 2 || op.inputs[0] != op.inputs[1];
}

BufferId owner_of(const Draft& draft, BufferId id) {
  while (draft.buffers[id].shares) id = *draft.buffers[id].shares;
  return id;
}

}  // namespace

void find_lifetimes(Draft& draft) {
  for (const BufferShape& shape : draft.recording.buffers)
    draft.buffers.push_back({shape, (shape.width + 31) / 32 * 32, {}, {}});
  const size_t end = draft.sections.size() - 1;
  for (size_t s = 0; s <= end; s++) {
    Section& section = draft.sections[s];
    const auto read = [&](const Operand& operand) {
      PlacedBuffer& buffer = draft.buffers[operand.buffer];
      // Sections on wanted rows may repeat: the buffers of all tokens that they read live to the
      // end.
      const bool repeats = section.rows == Rows::wanted && buffer.shape.rows == Rows::tokens;
      extend(buffer.lifetime, repeats ? end : s);
    };
    const auto write = [&](const Operand& operand) {
      extend(draft.buffers[operand.buffer].lifetime, s);
    };
    visit_operands(section, read, write);
    if (const auto* rows = std::get_if<RowSection>(&section.work))
      for (int stored : rows->stores) {
        read(draft.activations[stored].source);
        draft.placed_activations[stored].lifetime = {s, s};
      }
    if (const auto* linear = std::get_if<LinearSection>(&section.work))
      for (const LinearGroup& group : linear->groups)
        draft.placed_activations[group.activations].lifetime.last = s;
  }
  extend(draft.buffers[draft.logits].lifetime, end);
}

void share_in_place(Draft& draft) {
  const std::vector<std::optional<size_t>> readers = last_readers(draft.recording);
  const size_t end = draft.sections.size() - 1;
  for (size_t i = 0; i < draft.recording.ops.size(); i++) {
    const Op& op = draft.recording.ops[i];
    if (!may_run_in_place(op) || readers[op.inputs[0]] != i || op.inputs[0] == draft.logits)
      continue;
    const BufferId owner = owner_of(draft, op.inputs[0]);
    PlacedBuffer &in = draft.buffers[owner], &out = draft.buffers[op.outputs[0]];
    if (in.shape.rows != out.shape.rows || in.ld != out.ld) continue;
    const bool is_read_again = in.shape.rows == Rows::tokens && in.lifetime->last == end;
    if (is_read_again) continue;
    out.shares = owner;
    if (out.lifetime) extend(in.lifetime, out.lifetime->last);
  }
}

}  // namespace twostroke
