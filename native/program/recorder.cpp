#include "program/recorder.h"

#include <algorithm>
#include <stdexcept>

namespace twostroke {

Recorder::Recorder(const KernelTable& kernels, int64_t max_tokens, int64_t max_rows)
    : recording_{kernels, max_tokens, std::min(max_rows, max_tokens), {}, {}, {}} {}

std::vector<BufferId> Recorder::record(decltype(Op::kind) kind, std::vector<BufferId> inputs,
                                       const std::vector<int64_t>& widths) {
  for (BufferId id : inputs) width(id);
  Op op{std::move(kind), Rows::tokens, std::move(inputs), {}};
  if (is_row_op<TakeRows>(op))
    op.rows = Rows::wanted;
  else if (!op.inputs.empty())
    op.rows = recording_.buffers[op.inputs[0]].rows;
  for (int64_t width : widths) {
    op.outputs.push_back(static_cast<BufferId>(recording_.buffers.size()));
    recording_.buffers.push_back({width, op.rows});
  }
  recording_.ops.push_back(std::move(op));
  return recording_.ops.back().outputs;
}

BufferId Recorder::record(decltype(Op::kind) kind, std::vector<BufferId> inputs, int64_t width) {
  return record(std::move(kind), std::move(inputs), std::vector{width})[0];
}

int Recorder::add_rope(RopeShape shape) {
  recording_.ropes.push_back(shape);
  return static_cast<int>(recording_.ropes.size()) - 1;
}

int64_t Recorder::width(BufferId id) const {
  if (id < 0 || id >= static_cast<BufferId>(recording_.buffers.size()))
    throw std::invalid_argument("an op reads a buffer that no op wrote");
  return recording_.buffers[id].width;
}

std::unique_ptr<const Program> Recorder::compile(BufferId logits) const {
  return twostroke::compile(recording_, logits);
}

}  // namespace twostroke
