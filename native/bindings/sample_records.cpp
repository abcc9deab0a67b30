#include "bindings/sample_records.h"

namespace twostroke {

namespace {
constexpr int32_t kMostTop = sizeof(SampleResult::top_ids) / sizeof(int32_t);

void check_arrays(const SampleArrays& arrays, size_t rows, int64_t vocab_size) {
  if (arrays.records.size() != rows * sizeof(SampleRecord))
    fail("one sample record and one result are needed for each wanted row");
  for (size_t i = 0; i < arrays.ids.size(); i++)
    if (arrays.ids.data()[i] < 0 || arrays.ids.data()[i] >= vocab_size)
      fail("a token id is outside the vocabulary");
  if (arrays.masks.size() && static_cast<int64_t>(arrays.masks.shape(1)) * 32 < vocab_size)
    fail("a mask is shorter than the vocabulary");
}

// The values [begin, begin + count) of an array.
template <class T>
const T* range(const Array<T>& array, int32_t begin, int32_t count) {
  if (begin < 0 || count < 0 ||
      static_cast<size_t>(begin) + static_cast<size_t>(count) > array.size())
    fail("a sample record points outside its arrays");
  return array.data() + begin;
}

const uint32_t* mask_of(const SampleRecord& r, const SampleArrays& arrays) {
  if (!r.has_mask) return nullptr;
  if (!arrays.masks.size() || r.mask < 0 || r.mask >= static_cast<int64_t>(arrays.masks.shape(0)))
    fail("a mask row does not exist");
  return arrays.masks.data() + static_cast<size_t>(r.mask) * arrays.masks.shape(1);
}

SampleRow read_row(const SampleRecord& r, const SampleArrays& arrays, int64_t vocab_size) {
  const bool logprobs_fit = !r.wants_logprobs || (r.num_top >= 0 && r.num_top <= kMostTop);
  const bool target_fits = !r.wants_target || (r.target_id >= 0 && r.target_id < vocab_size);
  if (!logprobs_fit || !target_fits) fail("a sample record is out of range");
  return {r.temperature,
          r.top_k,
          r.top_p,
          r.min_p,
          r.repetition_penalty,
          r.presence_penalty,
          r.frequency_penalty,
          r.seed,
          r.choice,
          r.position,
          range(arrays.ids, r.bias_begin, r.num_bias),
          range(arrays.biases, r.bias_begin, r.num_bias),
          r.num_bias,
          range(arrays.ids, r.prompt_begin, r.num_prompt),
          r.num_prompt,
          range(arrays.ids, r.output_begin, r.num_output),
          r.num_output,
          mask_of(r, arrays),
          r.wants_logprobs,
          r.num_top,
          r.wants_target,
          r.target_id};
}
}  // namespace

std::vector<SampleRow> read_samples(const SampleArrays& arrays, size_t rows, int64_t vocab_size) {
  if (!arrays.records.size()) return {};
  check_arrays(arrays, rows, vocab_size);
  const auto* records = reinterpret_cast<const SampleRecord*>(arrays.records.data());
  std::vector<SampleRow> out;
  out.reserve(rows);
  for (size_t i = 0; i < rows; i++) out.push_back(read_row(records[i], arrays, vocab_size));
  return out;
}

}  // namespace twostroke
