// Row operations for tests.
#include <nanobind/stl/string.h>

#include "bindings/testing/support.h"

using namespace nanobind::literals;

namespace twostroke {
namespace {

NewFloats rms_norm(const std::string& set, const Matrix& x, const Vector& weight, double eps) {
  require(x.shape(1) == weight.shape(0), "x is [rows, n] and weight [n]");
  NewFloats out = make_array<float>({x.shape(0), x.shape(1)});
  const int64_t n = static_cast<int64_t>(x.shape(1));
  for (int64_t r = 0; r < static_cast<int64_t>(x.shape(0)); r++)
    find_set(set).rms_norm(out.data() + r * n, x.data() + r * n, weight.data(), n,
                           static_cast<float>(eps));
  return out;
}

NewFloats add_vectors(const std::string& set, const Vector& x, const Vector& y) {
  require(x.shape(0) == y.shape(0), "x and y are equally long");
  NewFloats out = make_array<float>({x.shape(0)});
  find_set(set).add(out.data(), x.data(), y.data(), static_cast<int64_t>(x.shape(0)));
  return out;
}

NewFloats gated(const std::string& set, const Vector& gate, const Vector& up,
                const std::string& kind) {
  require(gate.shape(0) == up.shape(0), "gate and up are equally long");
  require(kind == "silu" || kind == "gelu_tanh", "an activation is silu or gelu_tanh");
  NewFloats out = make_array<float>({gate.shape(0)});
  find_set(set).gated(out.data(), gate.data(), up.data(), static_cast<int64_t>(gate.shape(0)),
                      kind == "silu" ? Activation::silu : Activation::gelu_tanh);
  return out;
}

NewFloats rope(const std::string& set, const Matrix& x, int64_t position, const Matrix& cos,
               const Matrix& sin, bool interleaved) {
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin are alike");
  require(position >= 0 && position < static_cast<int64_t>(cos.shape(0)) &&
              2 * cos.shape(1) <= x.shape(1),
          "the position or the pairs are outside the table");
  NewFloats out = make_array<float>({x.shape(0), x.shape(1)});
  std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
  const RopeRows rows = {cos.data(), sin.data(), static_cast<int64_t>(cos.shape(1)), interleaved};
  find_set(set).rope(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)),
                     position, rows);
  return out;
}

NewFloats copy_vector(const Vector& x) {
  NewFloats out = make_array<float>({x.shape(0)});
  std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
  return out;
}

NewFloats soft_cap(const std::string& set, const Vector& x, double cap) {
  NewFloats out = copy_vector(x);
  find_set(set).soft_cap(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<float>(cap));
  return out;
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("rms_norm", &rms_norm, "kernel_set"_a, "x"_a, "weight"_a, "eps"_a);
  m.def("add", &add_vectors, "kernel_set"_a, "x"_a, "y"_a);
  m.def("gated", &gated, "kernel_set"_a, "gate"_a, "up"_a, "kind"_a);
  m.def("rope", &rope, "kernel_set"_a, "x"_a, "position"_a, "cos"_a, "sin"_a, "interleaved"_a);
  m.def("soft_cap", &soft_cap, "kernel_set"_a, "x"_a, "cap"_a);
}

}  // namespace twostroke
