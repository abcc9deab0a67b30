// The state that the passes of the compiler share; each pass continues the work of the one before.
#pragma once
#include "program/recorder.h"

namespace twostroke {

// The sections in which something lives in the arena, first and last included.
struct Lifetime {
  size_t first, last;
};

// A buffer with its place in the arena. Its rows lie `ld` floats apart.
struct PlacedBuffer {
  BufferShape shape;
  int64_t ld;
  std::optional<BufferId> shares;    // the buffer whose memory this one takes over
  std::optional<Lifetime> lifetime;  // empty: never written
  size_t offset = 0;
};

struct PlacedActivations {
  size_t bytes;
  Lifetime lifetime;
  size_t offset = 0;
};

struct Draft {
  Recording recording;
  BufferId logits;
  std::vector<Section> sections;
  std::vector<StoredActivations> activations;
  std::vector<AttentionShape> attention_shapes;
  std::vector<PlacedBuffer> buffers;                  // as recording.buffers
  std::vector<PlacedActivations> placed_activations;  // as activations
  size_t arena_bytes = 0;

  int64_t max_rows(Rows rows) const {
    return rows == Rows::tokens ? recording.max_tokens : recording.max_rows;
  }
  int64_t width(BufferId id) const { return recording.buffers[id].width; }
};

// narrow.cpp: moves take_rows up, so that ops whose results only wanted rows read compute those
// rows alone. The last layer's projections and MLP shrink to the sampled rows; no bit changes.
void narrow_to_wanted(Draft&);
// sections.cpp: groups the ops into sections and fuses neighbouring row ops.
void build_sections(Draft&);
// lifetimes.cpp: finds when each buffer is used, and which op may write over its input.
void find_lifetimes(Draft&);
void share_in_place(Draft&);
// arena.cpp: gives each buffer and each stored activation an offset; those that live at the same
// time do not overlap.
void place_in_arena(Draft&);

// Calls `read(operand)` or `write(operand)` for each operand of a section.
template <class Read, class Write>
void visit_operands(Section& section, Read read, Write write) {
  if (auto* rows = std::get_if<RowSection>(&section.work)) {
    for (RowStage& stage : rows->stages) {
      if (stage.x) read(*stage.x);
      if (stage.y) read(*stage.y);
      if (stage.out) write(*stage.out);
    }
  } else if (auto* linear = std::get_if<LinearSection>(&section.work)) {
    for (LinearGroup& group : linear->groups)
      for (Operand& output : group.outputs) write(output);
  } else if (auto* attention = std::get_if<AttentionSection>(&section.work)) {
    read(attention->q);
    write(attention->out);
  }
}

}  // namespace twostroke
