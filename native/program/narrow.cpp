#include <algorithm>

#include "program/compile.h"

namespace twostroke {

namespace {

bool can_narrow(const Op& op) {
  if (const RowOp* row_op = std::get_if<RowOp>(&op.kind))
    return traits_of(*row_op).reads_own_row_alone;
  return std::holds_alternative<Linear>(op.kind);
}

// By op: whether every reader of its results takes wanted rows or is narrowed itself.
std::vector<bool> find_narrow_ops(const Recording& recording) {
  const std::vector<Op>& ops = recording.ops;
  std::vector<std::vector<size_t>> readers(recording.buffers.size());
  for (size_t i = 0; i < ops.size(); i++)
    for (BufferId id : ops[i].inputs) readers[id].push_back(i);
  std::vector<bool> is_narrow(ops.size());
  for (size_t i = ops.size(); i-- > 0;) {
    if (ops[i].rows == Rows::wanted || !can_narrow(ops[i])) continue;
    bool is_read = false, only_wanted = true;
    for (BufferId id : ops[i].outputs)
      for (size_t reader : readers[id]) {
        is_read = true;
        only_wanted = only_wanted && (is_narrow[reader] || is_row_op<TakeRows>(ops[reader]));
      }
    is_narrow[i] = is_read && only_wanted;
  }
  return is_narrow;
}

// Rewrites the ops: narrowed ones get take_rows before them, and lose those behind them.
class Rewriter {
 public:
  explicit Rewriter(Draft& draft)
      : draft_(draft), buffers_(draft.recording.buffers), taken_(buffers_.size()) {
    for (size_t id = 0; id < buffers_.size(); id++) now_.push_back(static_cast<BufferId>(id));
  }

  void rewrite(const std::vector<bool>& is_narrow) {
    std::vector<Op> ops = std::move(draft_.recording.ops);
    for (size_t i = 0; i < ops.size(); i++) add(std::move(ops[i]), is_narrow[i]);
    // Ops on all tokens first: the others repeat when more rows are wanted than fit at once.
    std::stable_partition(rewritten_.begin(), rewritten_.end(),
                          [](const Op& op) { return op.rows == Rows::tokens; });
    draft_.recording.ops = std::move(rewritten_);
    draft_.logits = now_[draft_.logits];
  }

 private:
  void add(Op op, bool is_narrow) {
    for (BufferId& id : op.inputs) id = now_[id];
    if (is_narrow) {
      op.rows = Rows::wanted;
      for (BufferId id : op.outputs) buffers_[id].rows = Rows::wanted;
    }
    if (is_row_op<TakeRows>(op)) {
      if (buffers_[op.inputs[0]].rows == Rows::wanted) {
        now_[op.outputs[0]] = op.inputs[0];  // nothing left to take
        return;
      }
    } else if (op.rows == Rows::wanted) {
      for (BufferId& id : op.inputs) id = wanted_rows_of(id);
    }
    rewritten_.push_back(std::move(op));
  }

  BufferId wanted_rows_of(BufferId id) {
    if (buffers_[id].rows == Rows::wanted) return id;
    if (!taken_[id]) {
      taken_[id] = static_cast<BufferId>(buffers_.size());
      buffers_.push_back({buffers_[id].width, Rows::wanted});
      rewritten_.push_back({RowOp{TakeRows{}}, Rows::wanted, {id}, {*taken_[id]}});
    }
    return *taken_[id];
  }

  Draft& draft_;
  std::vector<BufferShape>& buffers_;
  std::vector<std::optional<BufferId>> taken_;  // by buffer of all tokens: its wanted rows
  std::vector<BufferId> now_;                   // by recorded buffer: the one that stands for it
  std::vector<Op> rewritten_;
};

}  // namespace

void narrow_to_wanted(Draft& draft) { Rewriter(draft).rewrite(find_narrow_ops(draft.recording)); }

}  // namespace twostroke
