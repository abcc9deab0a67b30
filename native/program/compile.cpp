// From a recording to a program: the passes in order, then pointers into the arena.
#include "program/compile.h"

#include <algorithm>
#include <stdexcept>

namespace twostroke {

namespace {

void check_logits(const Recording& recording, BufferId logits) {
  const bool exists = logits >= 0 && logits < static_cast<BufferId>(recording.buffers.size());
  if (!exists || recording.buffers[logits].rows != Rows::wanted)
    throw std::invalid_argument("the result of a program must come after take_rows");
}

int64_t num_embeddings(const std::vector<Op>& ops) {
  int64_t rows = INT64_MAX;
  for (const Op& op : ops)
    if (is_row_op<Embed>(op))
      rows = std::min(rows, std::get<Embed>(std::get<RowOp>(op.kind)).table_rows);
  return rows;
}

int64_t num_layers(const std::vector<Op>& ops) {
  int64_t layers = 0;
  for (const Op& op : ops)
    if (const Attention* attention = std::get_if<Attention>(&op.kind))
      layers = std::max(layers, attention->layer + 1);
  return layers;
}

size_t first_wanted(const std::vector<Section>& sections) {
  const auto first = std::find_if(sections.begin(), sections.end(),
                                  [](const Section& s) { return s.rows == Rows::wanted; });
  return static_cast<size_t>(first - sections.begin());
}

// Points every operand and every stored activation into the arena.
void bind_memory(Program& program, const Draft& draft) {
  uint8_t* arena = program.arena.data();
  const auto bind = [&](Operand& operand) {
    const PlacedBuffer& buffer = draft.buffers[operand.buffer];
    const PlacedBuffer& owner = buffer.shares ? draft.buffers[*buffer.shares] : buffer;
    operand.data = reinterpret_cast<float*>(arena + owner.offset);
    operand.ld = buffer.ld;
  };
  for (Section& section : program.sections) visit_operands(section, bind, bind);
  for (size_t i = 0; i < program.activations.size(); i++) {
    bind(program.activations[i].source);
    program.activations[i].data = arena + draft.placed_activations[i].offset;
  }
  bind(program.logits);
}

// The arrays that a linear call points to, and what it prefetches: the matrix of the next call, and
// after the last one the first matrix of the next step.
void finish_linear(Program& program) {
  std::vector<LinearGroup*> groups;
  for (Section& section : program.sections)
    if (auto* linear = std::get_if<LinearSection>(&section.work))
      for (LinearGroup& group : linear->groups) groups.push_back(&group);
  for (size_t i = 0; i < groups.size(); i++) {
    for (const Operand& output : groups[i]->outputs) {
      groups[i]->outs.push_back(output.data);
      groups[i]->ldo.push_back(output.ld);
    }
    groups[i]->next = groups[(i + 1) % groups.size()]->matrices[0].data;
  }
}

}  // namespace

std::unique_ptr<const Program> compile(Recording recording, BufferId logits) {
  check_logits(recording, logits);
  Draft draft{std::move(recording), logits, {}, {}, {}, {}, {}};
  narrow_to_wanted(draft);
  build_sections(draft);
  find_lifetimes(draft);
  share_in_place(draft);
  place_in_arena(draft);
  const Recording& narrowed = draft.recording;
  const size_t first_wanted_section = first_wanted(draft.sections);
  std::unique_ptr<Program> program(new Program{
      narrowed.kernels, narrowed.max_tokens, narrowed.max_rows, draft.width(draft.logits),
      num_layers(narrowed.ops), num_embeddings(narrowed.ops), std::move(draft.sections),
      first_wanted_section, std::move(draft.activations), std::move(draft.attention_shapes),
      narrowed.ropes, Operand{draft.logits}, HugeMemory(draft.arena_bytes)});
  bind_memory(*program, draft);
  finish_linear(*program);
  return program;
}

}  // namespace twostroke
