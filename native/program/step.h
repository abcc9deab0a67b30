// The inputs and outputs of one step. Legend: T tokens, S requests, R wanted rows, V vocabulary.
#pragma once
#include "kv_pool.h"
#include "program/program.h"

namespace twostroke {

struct StepInputs {
  int64_t num_tokens, num_seqs, num_rows;
  const int32_t* token_ids;     // [T]
  const int32_t* positions;     // [T]
  const int64_t* slots;         // [T]
  const int32_t* cu_seqlens_q;  // [S + 1]
  const int32_t* context_lens;  // [S]
  const int32_t* block_tables;  // [S, table_stride]
  int64_t table_stride;
  const int32_t* logit_rows;  // [R]
  const SampleRow* samples;   // [R] or null: no sampling
  const int32_t* new_blocks;  // [num_new_blocks]
  int64_t num_new_blocks;
  const BlockCopy* copies;  // [num_copies]
  int64_t num_copies;
};

struct StepOutputs {
  SampleResult* samples;  // [R]
  float* logits;          // [R, V] or null
};

// check_step.cpp. Raises std::invalid_argument when an array does not fit the program, the cache or
// the rotary tables: a step that passes is safe to run.
void check_step(const Program&, const StepInputs&, const KvPool&, int64_t rope_positions);

}  // namespace twostroke
