// Records a forward pass as ops over buffers, in order of execution. Knows no memory and no step.
#pragma once
#include <memory>
#include <vector>

#include "program/ops.h"
#include "program/program.h"

namespace twostroke {

struct BufferShape {
  int64_t width;  // values of a row
  Rows rows;
};

struct Recording {
  const KernelTable& kernels;
  int64_t max_tokens, max_rows;  // of a step; wanted rows that are computed at once
  std::vector<Op> ops;
  std::vector<BufferShape> buffers;  // by BufferId
  std::vector<RopeShape> ropes;
};

// compile.cpp. Raises std::invalid_argument when no take_rows stands before `logits`.
std::unique_ptr<const Program> compile(Recording, BufferId logits);

class Recorder {
 public:
  Recorder(const KernelTable&, int64_t max_tokens, int64_t max_rows);

  // `widths` are those of the outputs. Raises std::invalid_argument for an unknown input.
  std::vector<BufferId> record(decltype(Op::kind), std::vector<BufferId> inputs,
                               const std::vector<int64_t>& widths);
  BufferId record(decltype(Op::kind), std::vector<BufferId> inputs, int64_t width);
  // Returns the index that Rope::table names.
  int add_rope(RopeShape);
  int64_t width(BufferId) const;

  // The program that ends in `logits`, from which a step samples. Recording may go on.
  std::unique_ptr<const Program> compile(BufferId logits) const;

 private:
  Recording recording_;
};

}  // namespace twostroke
