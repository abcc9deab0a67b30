// Runs the steps of one program, one at a time. Keeps the state that outlives a step: memory that
// steps reuse, the rotary tables and the profile.
#pragma once
#include <mutex>

#include "program/step_run.h"

namespace twostroke {

class Executor {
 public:
  explicit Executor(std::unique_ptr<const Program>);

  const Program& program() const { return *program_; }
  // Shapes: cos and sin [positions, pairs]
  void set_rope(int index, const float* cos, const float* sin, int64_t positions, int64_t pairs);
  // Positions that every rotary table has.
  int64_t rope_positions() const;

  // Raises std::invalid_argument as check_step does.
  void check(const StepInputs&, const KvPool&) const;
  void step(ThreadPool&, KvPool&, const StepInputs&, const StepOutputs&);

  void set_profiling(bool on) { is_profiling_ = on; }
  std::vector<ProfileLine> take_profile() { return profile_.take(program_->sections); }

 private:
  std::unique_ptr<const Program> program_;
  std::mutex one_step_;
  StepMemory memory_;
  std::vector<RopeTable> ropes_;  // by Program::ropes
  Profile profile_;
  bool is_profiling_ = false;
};

}  // namespace twostroke
