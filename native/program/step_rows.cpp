// Row sections of a step: a chain of row ops on a tile of rows, then the tile's stored activations.
#include <algorithm>
#include <cstring>

#include "program/step_run.h"

namespace twostroke {

namespace {
constexpr int64_t kTileRows = 8;         // of a row section without stored activations
constexpr int64_t kSerialValues = 4096;  // below it, threads cost more than they save
constexpr int64_t kSplitValues = 4096;   // likewise for a split by columns
constexpr int64_t kColumnStep = 256;     // largest group of a weight format

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

void copy_values(float* out, const float* x, int64_t count) {
  if (out != x) std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
}
}  // namespace

int64_t StepRun::prepare(const RowSection& section) {
  const int64_t rows = num_rows(this->section().rows), threads = pool_.size();
  row_cut_ = {};
  if (!rows) return 0;
  int64_t tiles;
  if (section.stores.empty()) {
    const bool is_serial = rows * section.width <= kSerialValues;
    row_cut_.tile_rows = is_serial ? rows : std::min(divided_up(rows, threads), kTileRows);
    tiles = divided_up(rows, row_cut_.tile_rows);
  } else {
    tiles = kernels_.act_tiles(program_.activations[section.stores[0]].kind, rows);
  }
  if (tiles > 1 || !section.is_elementwise || threads == 1 || rows * section.width < kSplitValues)
    return tiles;
  row_cut_.columns = divided_up(divided_up(section.width, threads), kColumnStep) * kColumnStep;
  return divided_up(section.width, row_cut_.columns);
}

void StepRun::run(const RowSection& section, int64_t item, int) {
  const int64_t rows = num_rows(this->section().rows);
  const bool by_columns = row_cut_.columns != 0;
  const int64_t tile = by_columns ? 0 : item;
  int64_t begin = 0, end = rows;
  Columns columns{0, section.width};
  if (by_columns) {
    columns.begin = item * row_cut_.columns;
    columns.end = std::min(section.width, columns.begin + row_cut_.columns);
  } else if (section.stores.empty()) {
    begin = item * row_cut_.tile_rows;
    end = std::min(rows, begin + row_cut_.tile_rows);
  } else {
    const ActKind kind = program_.activations[section.stores[0]].kind;
    kernels_.act_tile_range(kind, rows, tile, &begin, &end);
  }
  for (int64_t row = begin; row < end; row++)
    for (const RowStage& stage : section.stages)
      run_stage(stage, row, by_columns ? columns : Columns{0, stage.width});
  for (int index : section.stores) {
    const StoredActivations& stored = program_.activations[index];
    const int64_t last = by_columns ? columns.end : stored.width;
    kernels_.act_store(stored.data, stored.kind, stored.source.data, stored.source.ld, rows,
                       stored.width, tile, columns.begin / 32, divided_up(last, 32));
  }
}

namespace {

// One row of a stage, or a range of its columns: each kind of op by its kernel.
struct StageRow {
  const KernelTable& kernels;
  const KvPool& kv;
  const StepInputs& in;
  const std::vector<RopeShape>& rope_shapes;
  const std::vector<RopeTable>& ropes;
  const RowStage& stage;
  int64_t row, first_wanted_row, begin, end;

  float* out() const { return stage.out->row(row); }
  const float* x() const { return stage.x->row(row); }
  const float* y() const { return stage.y->row(row); }

  void operator()(const Embed& op) const {
    kernels.embed_row(out(), op.format, op.table + in.token_ids[row] * op.row_bytes, stage.width,
                      op.scale);
  }
  void operator()(const RmsNorm& op) const {
    kernels.rms_norm(out(), x(), op.weight, stage.width, op.eps);
  }
  void operator()(const HeadNorm& op) const {
    for (int64_t head = 0; head < stage.width; head += op.head_dim)
      kernels.rms_norm(out() + head, x() + head, op.weight, op.head_dim, op.eps);
  }
  void operator()(const Rope& op) const {
    const RopeTable& table = ropes[op.table];
    const RopeShape& shape = rope_shapes[op.table];
    copy_values(out(), x(), stage.width);
    kernels.rope(out(), stage.width / op.head_dim, op.head_dim, in.positions[row],
                 {table.cos.data(), table.sin.data(), shape.pairs, shape.interleaved});
  }
  void operator()(const AppendKv& op) const {
    kernels.kv_append(kv.layer(op.layer), in.slots[row], x(), y());
  }
  void operator()(const Add&) const {
    kernels.add(out() + begin, x() + begin, y() + begin, end - begin);
  }
  void operator()(const Gated& op) const {
    kernels.gated(out() + begin, x() + begin, y() + begin, end - begin, op.activation);
  }
  void operator()(const SoftCap& op) const {
    copy_values(out() + begin, x() + begin, end - begin);
    kernels.soft_cap(out() + begin, end - begin, op.cap);
  }
  void operator()(const TakeRows&) const {
    copy_values(out(), stage.x->row(in.logit_rows[first_wanted_row + row]), stage.width);
  }
};

}  // namespace

void StepRun::run_stage(const RowStage& stage, int64_t row, Columns columns) const {
  std::visit(StageRow{kernels_, kv_, in_, program_.ropes, ropes_, stage, row, first_row_,
                      columns.begin, columns.end},
             stage.op);
}

}  // namespace twostroke
