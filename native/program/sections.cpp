#include <algorithm>

#include "program/compile.h"

namespace twostroke {

namespace {

class SectionBuilder {
 public:
  explicit SectionBuilder(Draft& draft)
      : draft_(draft), kernels_(draft.recording.kernels), sections_(draft.sections) {}

  void build() {
    sections_.push_back({Rows::tokens, "prepare_kv", PrepareKvSection{}});
    for (const Op& op : draft_.recording.ops)
      std::visit([&](const auto& kind) { add(op, kind); }, op.kind);
    sections_.push_back({Rows::wanted, "sample", SampleSection{}});
  }

 private:
  static RowSection* rows_of(Section& section) { return std::get_if<RowSection>(&section.work); }

  // The last section if it takes row ops on these rows, else a new one.
  Section& row_section(Rows rows) {
    if (!rows_of(sections_.back()) || sections_.back().rows != rows) start_row_section(rows);
    return sections_.back();
  }
  void start_row_section(Rows rows) { sections_.push_back({rows, "", RowSection{}}); }

  static void append_label(Section& section, const char* name) {
    if (!section.label.empty()) section.label += '+';
    section.label += name;
  }

  void add(const Op& op, const RowOp& kind) {
    // Activations are stored at the end of an item: a stage after them would change their source.
    if (rows_of(sections_.back()) && !rows_of(sections_.back())->stores.empty())
      start_row_section(op.rows);
    Section& section = row_section(op.rows);
    RowSection& rows = *rows_of(section);
    RowStage stage{
        kind, draft_.width(op.outputs.empty() ? op.inputs[0] : op.outputs[0]), {}, {}, {}};
    if (!op.outputs.empty()) stage.out = Operand{op.outputs[0]};
    if (!op.inputs.empty()) stage.x = Operand{op.inputs[0]};
    if (op.inputs.size() > 1) stage.y = Operand{op.inputs[1]};
    rows.is_elementwise = rows.is_elementwise && traits_of(kind).is_elementwise &&
                          (!rows.width || rows.width == stage.width);
    rows.width = std::max(rows.width, stage.width);
    append_label(section, traits_of(kind).name);
    rows.stages.push_back(std::move(stage));
  }

  void add(const Op& op, const Linear& kind) {
    LinearSection linear;
    for (size_t i = 0; i < kind.matrices.size(); i++) {
      const PackedMatrix& matrix = kind.matrices[i];
      const int stored = store(op, kernels_.act_kind(matrix.format));
      auto group = std::find_if(linear.groups.begin(), linear.groups.end(),
                                [&](const LinearGroup& g) { return g.activations == stored; });
      if (group == linear.groups.end())
        group = linear.groups.insert(group, LinearGroup{stored, {}, {}, {}, {}, {}});
      group->matrices.push_back(matrix);
      group->biases.push_back(kind.biases[i]);
      group->outputs.push_back(Operand{op.outputs[i]});
    }
    sections_.push_back({op.rows, kind.name, std::move(linear)});
  }

  void add(const Op& op, const Attention& kind) {
    std::vector<AttentionShape>& shapes = draft_.attention_shapes;
    auto shape = std::find_if(shapes.begin(), shapes.end(), [&](const AttentionShape& s) {
      return s.num_heads == kind.num_heads && s.window == kind.window;
    });
    if (shape == shapes.end())
      shape = shapes.insert(shape, {kind.num_heads, kind.window, sections_.size()});
    sections_.push_back({op.rows, kind.window ? "attend_window" : "attend",
                         AttentionSection{kind, Operand{op.inputs[0]}, Operand{op.outputs[0]},
                                          static_cast<int>(shape - shapes.begin())}});
  }

  // Index of the input's activations in `kind`. New ones join the row section before the matrices.
  int store(const Op& op, ActKind kind) {
    std::vector<StoredActivations>& all = draft_.activations;
    const BufferId source = op.inputs[0];
    const auto stored = std::find_if(all.begin(), all.end(), [&](const StoredActivations& a) {
      return a.source.buffer == source && a.kind == kind;
    });
    if (stored != all.end()) return static_cast<int>(stored - all.begin());
    Section* section = &row_section(op.rows);
    if (!rows_of(*section)->stores.empty() &&
        !have_same_tiles(all[rows_of(*section)->stores[0]].kind, kind)) {
      start_row_section(op.rows);
      section = &sections_.back();
    }
    RowSection& rows = *rows_of(*section);
    const int64_t width = draft_.width(source);
    if (rows.width && rows.width != width) rows.is_elementwise = false;
    rows.width = width;
    append_label(*section, "store");
    rows.stores.push_back(static_cast<int>(all.size()));
    all.push_back({kind, Operand{source}, width});
    draft_.placed_activations.push_back({most_bytes(op.rows, kind, width), {}});
    return static_cast<int>(all.size()) - 1;
  }

  // Fewer rows in uneven tiles could take more room than the most rows do.
  size_t most_bytes(Rows rows, ActKind kind, int64_t width) const {
    size_t bytes = 0;
    for (int64_t r = 1; r <= draft_.max_rows(rows); r++)
      bytes = std::max(bytes, kernels_.act_bytes(kind, r, width));
    return bytes;
  }

  // Tiles grow alike beyond 64 rows: of those, only the largest number is compared.
  bool have_same_tiles(ActKind a, ActKind b) const {
    const int64_t most = draft_.recording.max_tokens;
    for (int64_t rows = 1; rows <= std::min<int64_t>(most, 64); rows++)
      if (!have_same_tiles(a, b, rows)) return false;
    return have_same_tiles(a, b, most);
  }
  bool have_same_tiles(ActKind a, ActKind b, int64_t rows) const {
    if (kernels_.act_tiles(a, rows) != kernels_.act_tiles(b, rows)) return false;
    for (int64_t tile = 0; tile < kernels_.act_tiles(a, rows); tile++) {
      int64_t a_begin, a_end, b_begin, b_end;
      kernels_.act_tile_range(a, rows, tile, &a_begin, &a_end);
      kernels_.act_tile_range(b, rows, tile, &b_begin, &b_end);
      if (a_begin != b_begin || a_end != b_end) return false;
    }
    return true;
  }

  Draft& draft_;
  const KernelTable& kernels_;
  std::vector<Section>& sections_;
};

}  // namespace

void build_sections(Draft& draft) { SectionBuilder(draft).build(); }

}  // namespace twostroke
