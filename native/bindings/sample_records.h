// The wanted rows of a step as Python writes them: records whose ranges point into shared arrays.
#pragma once
#include <vector>

#include "bindings/arrays.h"

namespace twostroke {

// As SAMPLE_RECORD in native_sampling.py.
struct SampleRecord {
  uint64_t seed, position;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k;
  uint32_t choice;
  int32_t num_top, target_id;
  int32_t mask;  // row of the masks
  int32_t num_bias, bias_begin;
  int32_t num_prompt, prompt_begin;
  int32_t num_output, output_begin;
  bool wants_logprobs, wants_target, has_mask;
  uint8_t unused;
};
static_assert(sizeof(SampleRecord) == 88);
static_assert(sizeof(SampleResult) == 272);

struct SampleArrays {
  Array<uint8_t> records;  // of SampleRecord; empty: no sampling
  Array<int32_t> ids;
  Array<float> biases;       // bias i goes with id i
  Array<uint32_t, 2> masks;  // [M, words]
};

// Raises std::invalid_argument where a record points outside its arrays or the vocabulary.
std::vector<SampleRow> read_samples(const SampleArrays&, size_t rows, int64_t vocab_size);

}  // namespace twostroke
