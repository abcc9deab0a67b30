// A program for Python, with the arrays that its ops point into.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/sample_records.h"
#include "program/executor.h"

namespace twostroke {

using KeptArrays = std::vector<nb::ndarray<nb::ro>>;

// The arrays of a step. Legend: T tokens, S requests, R wanted rows, V vocabulary.
struct StepArrays {
  Array<int32_t> token_ids, positions;        // [T]
  Array<int64_t> slots;                       // [T]
  Array<int32_t> cu_seqlens_q, context_lens;  // [S + 1], [S]
  Array<int32_t, 2> block_tables;             // [S, most blocks]
  Array<int32_t> logit_rows;                  // [R]
  Array<int32_t> new_blocks;
  Array<int32_t, 2> copies;                // [n, 3]: source, target, tokens
  Output<uint8_t> results;                 // of SampleResult: [R], or empty
  std::optional<Output<float, 2>> logits;  // [R, V]
};

class PythonProgram {
 public:
  PythonProgram(std::unique_ptr<const Program> program, KeptArrays kept)
      : kept_(std::move(kept)), executor_(std::move(program)) {}

  Executor& executor() { return executor_; }
  void set_rope(int index, Array<float, 2> cos, Array<float, 2> sin);
  // Runs a step with the GIL released. Raises std::invalid_argument when an array does not fit.
  void step(ThreadPool&, KvPool&, const StepArrays&, const SampleArrays&);

 private:
  void check_lengths(const StepArrays&, const SampleArrays&) const;

  KeptArrays kept_;
  Executor executor_;
};

}  // namespace twostroke
