#include "program/executor.h"

#include <algorithm>
#include <stdexcept>

namespace twostroke {

Executor::Executor(std::unique_ptr<const Program> program)
    : program_(std::move(program)),
      memory_(*program_),
      ropes_(program_->ropes.size()),
      profile_(program_->sections.size()) {}

void Executor::set_rope(int index, const float* cos, const float* sin, int64_t positions,
                        int64_t pairs) {
  std::lock_guard lock(one_step_);
  RopeTable& table = ropes_.at(static_cast<size_t>(index));
  if (pairs != program_->ropes[index].pairs)
    throw std::invalid_argument("a rope table has the wrong width");
  table.cos.assign(cos, cos + positions * pairs);
  table.sin.assign(sin, sin + positions * pairs);
  table.positions = positions;
}

int64_t Executor::rope_positions() const {
  int64_t positions = INT64_MAX;
  for (const RopeTable& table : ropes_) positions = std::min(positions, table.positions);
  return positions;
}

void Executor::check(const StepInputs& in, const KvPool& kv) const {
  check_step(*program_, in, kv, rope_positions());
}

void Executor::step(ThreadPool& pool, KvPool& kv, const StepInputs& in, const StepOutputs& out) {
  std::scoped_lock lock(one_step_, pool.in_use());
  Profile* profile = is_profiling_ ? &profile_ : nullptr;
  StepRun(*program_, memory_, ropes_, profile, pool, kv, in, out).run();
}

}  // namespace twostroke
