// Choosing one token for tests and benchmarks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "bindings/testing/support.h"

using namespace nanobind::literals;

namespace twostroke {
namespace {

template <class T>
T option(const nb::dict& options, const char* name, T otherwise) {
  return options.contains(name) ? nb::cast<T>(options[name]) : otherwise;
}

SampleRow sample_row(const nb::dict& o, int64_t vocab) {
  SampleRow row{};
  row.temperature = option(o, "temperature", 0.f);
  row.top_k = option(o, "top_k", 0);
  row.top_p = option(o, "top_p", 1.f);
  row.min_p = option(o, "min_p", 0.f);
  row.repetition_penalty = option(o, "repetition_penalty", 1.f);
  row.presence_penalty = option(o, "presence_penalty", 0.f);
  row.frequency_penalty = option(o, "frequency_penalty", 0.f);
  row.seed = option(o, "seed", uint64_t{0});
  row.choice = option(o, "choice", uint32_t{0});
  row.position = option(o, "position", uint64_t{0});
  row.wants_logprobs = o.contains("num_logprobs");
  row.num_top = option(o, "num_logprobs", 0);
  row.wants_target = o.contains("target_id");
  row.target_id = option(o, "target_id", 0);
  const auto ids = [&](const char* name, const int32_t** data, int64_t* count) {
    if (!o.contains(name)) return;
    const auto array = nb::cast<Array<int32_t>>(o[name]);
    *data = array.data();
    *count = static_cast<int64_t>(array.shape(0));
  };
  ids("bias_ids", &row.bias_ids, &row.num_bias);
  ids("prompt_ids", &row.prompt_ids, &row.num_prompt);
  ids("output_ids", &row.output_ids, &row.num_output);
  if (row.num_bias) {
    const auto biases = nb::cast<Vector>(o["biases"]);
    require(static_cast<int64_t>(biases.shape(0)) == row.num_bias, "one bias for each bias id");
    row.biases = biases.data();
  }
  if (o.contains("mask")) {
    const auto mask = nb::cast<Array<uint32_t>>(o["mask"]);
    require(static_cast<int64_t>(mask.shape(0)) * 32 >= vocab, "the mask is shorter than the row");
    row.mask = mask.data();
  }
  return row;
}

nb::dict sample(const std::string& set, const Vector& logits, const nb::dict& options) {
  const int64_t vocab = static_cast<int64_t>(logits.shape(0));
  require(vocab > 0, "a row has logits");
  const SampleRow row = sample_row(options, vocab);
  const auto scratch = aligned_memory<uint8_t>(find_set(set).sample_scratch_bytes(vocab));
  SampleResult r;
  const int64_t repeat = option(options, "repeat", int64_t{1});
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeat; i++)
    find_set(set).sample(&r, logits.data(), vocab, row, scratch.get());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  nb::dict out;
  out["token_id"] = r.token_id;
  out["logprob"] = r.logprob;
  out["target_logprob"] = r.target_logprob;
  out["top_ids"] = std::vector<int32_t>(r.top_ids, r.top_ids + r.num_top);
  out["top_logprobs"] = std::vector<float>(r.top_logprobs, r.top_logprobs + r.num_top);
  out["seconds"] = seconds.count() / static_cast<double>(repeat);
  return out;
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample", &sample, "kernel_set"_a, "logits"_a, "options"_a,
        "Choose one token; options are the fields of SampleRow. Returns SampleResult as a dict.");
}

}  // namespace twostroke
