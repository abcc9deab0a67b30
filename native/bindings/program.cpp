// Programs and their steps for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/python_program.h"

namespace twostroke {

void PythonProgram::set_rope(int index, Array<float, 2> cos, Array<float, 2> sin) {
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1))
    fail("cos and sin differ in shape");
  executor_.set_rope(index, cos.data(), sin.data(), static_cast<int64_t>(cos.shape(0)),
                     static_cast<int64_t>(cos.shape(1)));
}

void PythonProgram::check_lengths(const StepArrays& a, const SampleArrays& samples) const {
  const size_t tokens = a.token_ids.size(), seqs = a.context_lens.size();
  const size_t rows = a.logit_rows.size();
  if (a.positions.size() != tokens || a.slots.size() != tokens ||
      a.cu_seqlens_q.size() != seqs + 1 || a.block_tables.shape(0) != seqs)
    fail("the arrays of a step differ in length");
  if (a.copies.size() && a.copies.shape(1) != 3) fail("a block copy is source, target, tokens");
  if (samples.records.size() && a.results.size() != rows * sizeof(SampleResult))
    fail("one sample record and one result are needed for each wanted row");
  const int64_t vocab_size = executor_.program().vocab_size;
  if (a.logits &&
      (a.logits->shape(0) != rows || static_cast<int64_t>(a.logits->shape(1)) != vocab_size))
    fail("the logits array has the wrong shape");
}

void PythonProgram::step(ThreadPool& pool, KvPool& kv, const StepArrays& a,
                         const SampleArrays& samples) {
  check_lengths(a, samples);
  const std::vector<SampleRow> sample_rows =
      read_samples(samples, a.logit_rows.size(), executor_.program().vocab_size);
  const StepInputs in{static_cast<int64_t>(a.token_ids.size()),
                      static_cast<int64_t>(a.context_lens.size()),
                      static_cast<int64_t>(a.logit_rows.size()),
                      a.token_ids.data(),
                      a.positions.data(),
                      a.slots.data(),
                      a.cu_seqlens_q.data(),
                      a.context_lens.data(),
                      a.block_tables.data(),
                      static_cast<int64_t>(a.block_tables.shape(1)),
                      a.logit_rows.data(),
                      sample_rows.empty() ? nullptr : sample_rows.data(),
                      a.new_blocks.data(),
                      static_cast<int64_t>(a.new_blocks.size()),
                      reinterpret_cast<const BlockCopy*>(a.copies.data()),
                      static_cast<int64_t>(a.copies.shape(0))};
  const StepOutputs out{reinterpret_cast<SampleResult*>(a.results.data()),
                        a.logits ? a.logits->data() : nullptr};
  executor_.check(in, kv);
  nb::gil_scoped_release release;
  executor_.step(pool, kv, in, out);
}

namespace {

using ProfileLines = std::vector<std::tuple<std::string, double, int64_t>>;

ProfileLines take_profile(PythonProgram& program) {
  ProfileLines lines;
  for (const ProfileLine& line : program.executor().take_profile())
    lines.emplace_back(line.label, line.seconds, line.calls);
  return lines;
}

void bind_step(nb::class_<PythonProgram>& program) {
  using nb::arg;
  program.def(
      "step",
      [](PythonProgram& self, ThreadPool& pool, KvPool& kv, Array<int32_t> token_ids,
         Array<int32_t> positions, Array<int64_t> slots, Array<int32_t> cu_seqlens_q,
         Array<int32_t> context_lens, Array<int32_t, 2> block_tables, Array<int32_t> logit_rows,
         Array<int32_t> new_blocks, Array<int32_t, 2> copies, Array<uint8_t> sample_records,
         Array<int32_t> sample_ids, Array<float> sample_biases, Array<uint32_t, 2> sample_masks,
         Output<uint8_t> results, std::optional<Output<float, 2>> logits) {
        self.step(pool, kv,
                  {token_ids, positions, slots, cu_seqlens_q, context_lens, block_tables,
                   logit_rows, new_blocks, copies, results, logits},
                  {sample_records, sample_ids, sample_biases, sample_masks});
      },
      nb::kw_only(), arg("pool"), arg("kv"), arg("token_ids"), arg("positions"), arg("slots"),
      arg("cu_seqlens_q"), arg("context_lens"), arg("block_tables"), arg("logit_rows"),
      arg("new_blocks"), arg("copies"), arg("sample_records"), arg("sample_ids"),
      arg("sample_biases"), arg("sample_masks"), arg("results"), arg("logits").none());
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<PythonProgram> program(m, "Program");
  bind_step(program);
  program.def("set_rope", &PythonProgram::set_rope, nb::arg("rope"), nb::arg("cos"), nb::arg("sin"))
      .def(
          "set_profile", [](PythonProgram& p, bool on) { p.executor().set_profiling(on); },
          nb::arg("on"))
      .def("take_profile", &take_profile)
      .def_prop_ro("arena_bytes",
                   [](PythonProgram& p) { return p.executor().program().arena.bytes(); });
}

}  // namespace twostroke
