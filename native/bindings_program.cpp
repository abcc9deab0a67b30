// Python's door to programs, pools, caches and measurements: shapes and ranges are checked here,
// and a step runs with the GIL released.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings.h"
#include "program.h"

namespace nb = nanobind;

namespace twostroke {

namespace {
template <class T, size_t N = 1>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N = 1>
using Output = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Matrix = std::tuple<int, int64_t, int64_t, Array<uint8_t>>;  // format, n, k, packed bytes

// One wanted row as Python writes it; ranges point into the shared id and bias arrays.
struct SampleRecord {
  uint64_t seed, position;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k;
  uint32_t choice;
  int32_t num_logprobs, target_id;
  int32_t mask;  // row of the masks, -1: none
  int32_t num_bias, bias_begin;
  int32_t num_prompt, prompt_begin;
  int32_t num_output, output_begin;
  int32_t unused;
};
static_assert(sizeof(SampleRecord) == 88);
static_assert(sizeof(SampleResult) == 272);

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

const KernelTable& table_of(const std::string& name) {
  const KernelTable* table = kernel_set(name.c_str());
  if (!table) fail("kernel set " + name + " is not available here");
  return *table;
}

// A program and the Python arrays that it points into.
class RecordedProgram {
 public:
  RecordedProgram(const std::string& set, int64_t max_tokens, int64_t max_rows)
      : kernels_(table_of(set)), program_(kernels_, max_tokens, max_rows) {
    if (max_tokens < 1 || max_rows < 1) fail("a program needs room for a token and a row");
  }

  BufferId embed(Array<uint8_t> table, int format, int64_t rows, int64_t width, float scale) {
    if (rows < 1 || table.size() % rows) fail("the embedding table is no matrix");
    Op op{};
    op.kind = OpKind::embed;
    op.format = static_cast<Format>(format);
    op.table = keep(table);
    op.row_bytes = static_cast<int64_t>(table.size()) / rows;
    op.table_rows = rows;
    op.value = scale;
    return program_.record(std::move(op), width);
  }

  BufferId rms_norm(BufferId x, Array<float> weight, float eps) {
    if (static_cast<int64_t>(weight.size()) != program_.width(x))
      fail("norm weight has the wrong length");
    return norm(OpKind::rms_norm, x, weight, eps);
  }

  BufferId head_norm(BufferId x, Array<float> weight, float eps) {
    if (!weight.size() || program_.width(x) % weight.size())
      fail("head norm does not divide the row");
    return norm(OpKind::head_norm, x, weight, eps);
  }

  std::vector<BufferId> project(BufferId x, const std::vector<Matrix>& mats,
                                const std::vector<std::optional<Array<float>>>& biases,
                                const std::string& name) {
    if (mats.empty() || mats.size() != biases.size())
      fail("a projection needs one bias entry a matrix");
    Op op{};
    op.kind = OpKind::linear;
    op.name = name;
    op.in = {x};
    std::vector<int64_t> widths;
    for (size_t i = 0; i < mats.size(); i++) {
      const auto& [id, n, k, data] = mats[i];
      const Format format = static_cast<Format>(id);
      if (!can_pack(format) || k != program_.width(x)) fail("a matrix does not fit its input");
      if (static_cast<int64_t>(data.size()) < packed_bytes(format, n, k))
        fail("a packed matrix is too short");
      if (biases[i] && static_cast<int64_t>(biases[i]->size()) != n)
        fail("a bias has the wrong length");
      op.mats.push_back({format, n, k, keep(data)});
      op.biases.push_back(biases[i] ? keep(*biases[i]) : nullptr);
      widths.push_back(n);
    }
    return program_.record(std::move(op), widths);
  }

  int add_rope(int64_t pairs, bool interleaved) { return program_.add_rope(pairs, interleaved); }

  BufferId rope(BufferId x, int rope, int64_t head_dim) {
    if (head_dim < 1 || program_.width(x) % head_dim) fail("heads do not divide the row");
    Op op{};
    op.kind = OpKind::rope;
    op.in = {x};
    op.rope = rope;
    op.head_dim = head_dim;
    return program_.record(std::move(op), program_.width(x));
  }

  void append_kv(int64_t layer, BufferId k, BufferId v) {
    Op op{};
    op.kind = OpKind::kv_append;
    op.in = {k, v};
    op.layer = layer;
    program_.record(std::move(op), std::vector<int64_t>{});
  }

  BufferId attend(BufferId q, int64_t layer, int64_t heads, float scale, int64_t window,
                  float soft_cap) {
    Op op{};
    op.kind = OpKind::attend;
    op.in = {q};
    op.layer = layer;
    op.heads = heads;
    op.value = scale;
    op.window = window;
    op.soft_cap = soft_cap;
    return program_.record(std::move(op), program_.width(q));
  }

  BufferId add(BufferId x, BufferId y) {
    same_width(x, y);
    Op op{};
    op.kind = OpKind::add;
    op.in = {x, y};
    return program_.record(std::move(op), program_.width(x));
  }

  BufferId gated(BufferId gate, BufferId up, int activation) {
    same_width(gate, up);
    Op op{};
    op.kind = OpKind::gated;
    op.in = {gate, up};
    op.activation = static_cast<Activation>(activation);
    return program_.record(std::move(op), program_.width(gate));
  }

  BufferId take_rows(BufferId x) {
    Op op{};
    op.kind = OpKind::take_rows;
    op.in = {x};
    return program_.record(std::move(op), program_.width(x));
  }

  BufferId soft_cap(BufferId x, float cap) {
    Op op{};
    op.kind = OpKind::soft_cap;
    op.in = {x};
    op.value = cap;
    return program_.record(std::move(op), program_.width(x));
  }

  void set_rope(int id, Array<float, 2> cos, Array<float, 2> sin) {
    if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1))
      fail("cos and sin differ in shape");
    program_.set_rope(id, cos.data(), sin.data(), static_cast<int64_t>(cos.shape(0)),
                      static_cast<int64_t>(cos.shape(1)));
  }

  void step(ThreadPool& pool, KvPool& kv, Array<int32_t> token_ids, Array<int32_t> positions,
            Array<int64_t> slots, Array<int32_t> cu_seqlens_q, Array<int32_t> context_lens,
            Array<int32_t, 2> block_tables, Array<int32_t> logit_rows, Array<uint8_t> samples,
            Array<int32_t> ids, Array<float> biases, Array<uint32_t, 2> masks,
            Array<int32_t> new_blocks, Array<int32_t, 2> copies, Output<uint8_t> results,
            std::optional<Output<float, 2>> logits) {
    const size_t tokens = token_ids.size(), seqs = context_lens.size(), rows = logit_rows.size();
    if (positions.size() != tokens || slots.size() != tokens || cu_seqlens_q.size() != seqs + 1 ||
        block_tables.shape(0) != seqs)
      fail("the arrays of a step differ in length");
    if (copies.size() && copies.shape(1) != 3) fail("a block copy is source, target, tokens");
    const bool sampling = samples.size() != 0;
    if (sampling && (samples.size() != rows * sizeof(SampleRecord) ||
                     results.size() != rows * sizeof(SampleResult)))
      fail("one sample record and one result are needed for each wanted row");
    if (logits &&
        (logits->shape(0) != rows || static_cast<int64_t>(logits->shape(1)) != program_.vocab()))
      fail("the logits array has the wrong shape");
    std::vector<SampleRow> sample_rows;
    if (sampling) sample_rows = read_samples(samples, rows, ids, biases, masks);
    const StepInputs in{static_cast<int64_t>(tokens),
                        static_cast<int64_t>(seqs),
                        static_cast<int64_t>(rows),
                        token_ids.data(),
                        positions.data(),
                        slots.data(),
                        cu_seqlens_q.data(),
                        context_lens.data(),
                        block_tables.data(),
                        static_cast<int64_t>(block_tables.shape(1)),
                        logit_rows.data(),
                        sampling ? sample_rows.data() : nullptr,
                        new_blocks.data(),
                        static_cast<int64_t>(new_blocks.size()),
                        reinterpret_cast<const BlockCopy*>(copies.data()),
                        static_cast<int64_t>(copies.shape(0))};
    const StepOutputs out{reinterpret_cast<SampleResult*>(results.data()),
                          logits ? logits->data() : nullptr};
    program_.check(in, kv);
    nb::gil_scoped_release release;
    program_.step(pool, kv, in, out);
  }

  Program& program() { return program_; }

 private:
  template <class T>
  const T* keep(const Array<T>& array) {
    kept_.emplace_back(array);
    return array.data();
  }

  void same_width(BufferId x, BufferId y) const {
    if (program_.width(x) != program_.width(y)) fail("two rows differ in width");
  }

  BufferId norm(OpKind kind, BufferId x, const Array<float>& weight, float eps) {
    Op op{};
    op.kind = kind;
    op.in = {x};
    op.weight = keep(weight);
    op.value = eps;
    op.head_dim = static_cast<int64_t>(weight.size());
    return program_.record(std::move(op), program_.width(x));
  }

  std::vector<SampleRow> read_samples(const Array<uint8_t>& bytes, size_t rows,
                                      const Array<int32_t>& ids, const Array<float>& biases,
                                      const Array<uint32_t, 2>& masks) const {
    const int64_t vocab = program_.vocab();
    for (size_t i = 0; i < ids.size(); i++)
      if (ids.data()[i] < 0 || ids.data()[i] >= vocab) fail("a token id is outside the vocabulary");
    if (masks.size() && static_cast<int64_t>(masks.shape(1)) * 32 < vocab)
      fail("a mask is shorter than the vocabulary");
    auto range = [&](int32_t begin, int32_t count, size_t size) {
      if (begin < 0 || count < 0 || static_cast<size_t>(begin) + static_cast<size_t>(count) > size)
        fail("a sample record points outside its arrays");
      return begin;
    };
    const auto* records = reinterpret_cast<const SampleRecord*>(bytes.data());
    std::vector<SampleRow> out(rows);
    for (size_t i = 0; i < rows; i++) {
      const SampleRecord& r = records[i];
      if (r.num_logprobs > 32 || r.target_id >= vocab) fail("a sample record is out of range");
      if (r.mask >= static_cast<int64_t>(masks.size() ? masks.shape(0) : 0))
        fail("a mask row does not exist");
      range(r.bias_begin, r.num_bias, biases.size());
      out[i] = {r.temperature,
                r.top_k,
                r.top_p,
                r.min_p,
                r.repetition_penalty,
                r.presence_penalty,
                r.frequency_penalty,
                r.seed,
                r.choice,
                r.position,
                ids.data() + range(r.bias_begin, r.num_bias, ids.size()),
                biases.data() + r.bias_begin,
                r.num_bias,
                ids.data() + range(r.prompt_begin, r.num_prompt, ids.size()),
                r.num_prompt,
                ids.data() + range(r.output_begin, r.num_output, ids.size()),
                r.num_output,
                r.mask < 0 ? nullptr : masks.data() + static_cast<size_t>(r.mask) * masks.shape(1),
                r.num_logprobs,
                r.target_id};
    }
    return out;
  }

  const KernelTable& kernels_;
  Program program_;
  std::vector<nb::ndarray<nb::ro>> kept_;
};

void bind_recording(nb::class_<RecordedProgram>& c) {
  c.def(nb::init<const std::string&, int64_t, int64_t>(), nb::arg("kernel_set"),
        nb::arg("max_tokens"), nb::arg("max_rows"))
      .def("embed", &RecordedProgram::embed, nb::arg("table"), nb::arg("format"), nb::arg("rows"),
           nb::arg("width"), nb::arg("scale"))
      .def("rms_norm", &RecordedProgram::rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
      .def("head_norm", &RecordedProgram::head_norm, nb::arg("x"), nb::arg("weight"),
           nb::arg("eps"))
      .def("project", &RecordedProgram::project, nb::arg("x"), nb::arg("matrices"),
           nb::arg("biases"), nb::arg("name"))
      .def("add_rope", &RecordedProgram::add_rope, nb::arg("pairs"), nb::arg("interleaved"))
      .def("rope", &RecordedProgram::rope, nb::arg("x"), nb::arg("rope"), nb::arg("head_dim"))
      .def("append_kv", &RecordedProgram::append_kv, nb::arg("layer"), nb::arg("k"), nb::arg("v"))
      .def("attend", &RecordedProgram::attend, nb::arg("q"), nb::arg("layer"), nb::arg("heads"),
           nb::arg("scale"), nb::arg("window"), nb::arg("soft_cap"))
      .def("add", &RecordedProgram::add, nb::arg("x"), nb::arg("y"))
      .def("gated", &RecordedProgram::gated, nb::arg("gate"), nb::arg("up"), nb::arg("activation"))
      .def("take_rows", &RecordedProgram::take_rows, nb::arg("x"))
      .def("soft_cap", &RecordedProgram::soft_cap, nb::arg("x"), nb::arg("cap"))
      .def(
          "compile", [](RecordedProgram& p, BufferId logits) { p.program().compile(logits); },
          nb::arg("logits"));
}

void bind_running(nb::class_<RecordedProgram>& c) {
  c.def("set_rope", &RecordedProgram::set_rope, nb::arg("rope"), nb::arg("cos"), nb::arg("sin"))
      .def("step", &RecordedProgram::step)
      .def(
          "set_profile", [](RecordedProgram& p, bool on) { p.program().set_profile(on); },
          nb::arg("on"))
      .def("take_profile",
           [](RecordedProgram& p) {
             std::vector<std::tuple<std::string, double, int64_t>> lines;
             for (const ProfileLine& l : p.program().take_profile())
               lines.emplace_back(l.label, l.seconds, l.calls);
             return lines;
           })
      .def_prop_ro("arena_bytes", [](RecordedProgram& p) { return p.program().arena_bytes(); })
      .def_prop_ro("num_sections", [](RecordedProgram& p) { return p.program().num_sections(); })
      .def_prop_ro("rope_positions",
                   [](RecordedProgram& p) { return p.program().rope_positions(); });
}
}  // namespace

void bind_program(nb::module_& m) {
  bind_storage(m);
  nb::class_<RecordedProgram> program(m, "Program");
  bind_recording(program);
  bind_running(program);
}

}  // namespace twostroke
