// The recorder for Python: shapes are checked here, and the arrays that ops point into are kept.
#include "program/recorder.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/python_program.h"
#include "pack.h"

namespace twostroke {

namespace {
using Matrix = std::tuple<int, int64_t, int64_t, Array<uint8_t>>;  // format, n, k, packed bytes

class PythonRecorder {
 public:
  PythonRecorder(const std::string& kernel_set, int64_t max_tokens, int64_t max_rows)
      : recorder_(table_of(kernel_set), max_tokens, max_rows) {
    if (max_tokens < 1 || max_rows < 1) fail("a program needs room for a token and a row");
  }

  BufferId embed(Array<uint8_t> table, int format, int64_t rows, int64_t width, float scale) {
    if (rows < 1 || table.size() % rows) fail("the embedding table is no matrix");
    const int64_t row_bytes = static_cast<int64_t>(table.size()) / rows;
    return recorder_.record(Embed{static_cast<Format>(format), keep(table), row_bytes, rows, scale},
                            {}, width);
  }

  BufferId rms_norm(BufferId x, Array<float> weight, float eps) {
    if (static_cast<int64_t>(weight.size()) != recorder_.width(x))
      fail("norm weight has the wrong length");
    return map(x, RmsNorm{keep(weight), eps});
  }

  BufferId head_norm(BufferId x, Array<float> weight, float eps) {
    const int64_t head_dim = static_cast<int64_t>(weight.size());
    if (!head_dim || recorder_.width(x) % head_dim) fail("head norm does not divide the row");
    return map(x, HeadNorm{keep(weight), head_dim, eps});
  }

  std::vector<BufferId> project(BufferId x, const std::vector<Matrix>& matrices,
                                const std::vector<std::optional<Array<float>>>& biases,
                                const std::string& name) {
    if (matrices.empty() || matrices.size() != biases.size())
      fail("a projection needs one bias entry a matrix");
    Linear op{name, {}, {}};
    std::vector<int64_t> widths;
    for (size_t i = 0; i < matrices.size(); i++) {
      op.matrices.push_back(checked(matrices[i], recorder_.width(x)));
      const int64_t n = op.matrices.back().n;
      if (biases[i] && static_cast<int64_t>(biases[i]->size()) != n)
        fail("a bias has the wrong length");
      op.biases.push_back(biases[i] ? keep(*biases[i]) : nullptr);
      widths.push_back(n);
    }
    return recorder_.record(std::move(op), {x}, widths);
  }

  int add_rope(int64_t pairs, bool interleaved) { return recorder_.add_rope({pairs, interleaved}); }

  BufferId rope(BufferId x, int table, int64_t head_dim) {
    if (head_dim < 1 || recorder_.width(x) % head_dim) fail("heads do not divide the row");
    return map(x, Rope{table, head_dim});
  }

  void append_kv(int64_t layer, BufferId k, BufferId v) {
    recorder_.record(AppendKv{layer}, {k, v}, std::vector<int64_t>{});
  }

  BufferId attend(BufferId q, int64_t layer, int64_t heads, float scale, int64_t window,
                  float soft_cap) {
    return map(q, Attention{layer, heads, window, scale, soft_cap});
  }

  BufferId add(BufferId x, BufferId y) { return map(x, y, Add{}); }
  BufferId gated(BufferId gate, BufferId up, int activation) {
    return map(gate, up, Gated{static_cast<Activation>(activation)});
  }
  BufferId take_rows(BufferId x) { return map(x, TakeRows{}); }
  BufferId soft_cap(BufferId x, float cap) { return map(x, SoftCap{cap}); }

  std::unique_ptr<PythonProgram> compile(BufferId logits) const {
    return std::make_unique<PythonProgram>(recorder_.compile(logits), kept_);
  }

 private:
  // Ops whose result is as wide as their inputs.
  template <class Kind>
  BufferId map(BufferId x, Kind op) {
    return recorder_.record(op, {x}, recorder_.width(x));
  }
  template <class Kind>
  BufferId map(BufferId x, BufferId y, Kind op) {
    if (recorder_.width(x) != recorder_.width(y)) fail("two rows differ in width");
    return recorder_.record(op, {x, y}, recorder_.width(x));
  }

  PackedMatrix checked(const Matrix& matrix, int64_t width) {
    const auto& [id, n, k, data] = matrix;
    const Format format = static_cast<Format>(id);
    const std::optional<int64_t> bytes = packed_bytes(format, n, k);
    if (!bytes || k != width) fail("a matrix does not fit its input");
    if (static_cast<int64_t>(data.size()) < *bytes) fail("a packed matrix is too short");
    return {format, n, k, keep(data)};
  }

  template <class T>
  const T* keep(const Array<T>& array) {
    kept_.emplace_back(array);
    return array.data();
  }

  Recorder recorder_;
  KeptArrays kept_;
};
}  // namespace

void bind_recorder(nb::module_& m) {
  using nb::arg;
  nb::class_<PythonRecorder>(m, "Recorder")
      .def(nb::init<const std::string&, int64_t, int64_t>(), arg("kernel_set"), arg("max_tokens"),
           arg("max_rows"))
      .def("embed", &PythonRecorder::embed, arg("table"), arg("format"), arg("rows"), arg("width"),
           arg("scale"))
      .def("rms_norm", &PythonRecorder::rms_norm, arg("x"), arg("weight"), arg("eps"))
      .def("head_norm", &PythonRecorder::head_norm, arg("x"), arg("weight"), arg("eps"))
      .def("project", &PythonRecorder::project, arg("x"), arg("matrices"), arg("biases"),
           arg("name"))
      .def("add_rope", &PythonRecorder::add_rope, arg("pairs"), arg("interleaved"))
      .def("rope", &PythonRecorder::rope, arg("x"), arg("rope"), arg("head_dim"))
      .def("append_kv", &PythonRecorder::append_kv, arg("layer"), arg("k"), arg("v"))
      .def("attend", &PythonRecorder::attend, arg("q"), arg("layer"), arg("heads"), arg("scale"),
           arg("window"), arg("soft_cap"))
      .def("add", &PythonRecorder::add, arg("x"), arg("y"))
      .def("gated", &PythonRecorder::gated, arg("gate"), arg("up"), arg("activation"))
      .def("take_rows", &PythonRecorder::take_rows, arg("x"))
      .def("soft_cap", &PythonRecorder::soft_cap, arg("x"), arg("cap"))
      .def("compile", &PythonRecorder::compile, arg("logits"));
}

}  // namespace twostroke
