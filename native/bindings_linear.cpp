// twostroke._native: packing and single linear layers, for tests and benchmarks.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bindings.h"
#include "block_formats.h"
#include "kernels.h"

namespace nb = nanobind;

namespace twostroke {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewBytes = nb::ndarray<nb::numpy, uint8_t>;
using NewFloats = nb::ndarray<nb::numpy, float>;

constexpr size_t kAlignment = 64;

// Zeroed memory aligned to a cache line.
struct Buffer {
  explicit Buffer(size_t bytes)
      : data(static_cast<uint8_t*>(
            ::operator new(std::max<size_t>(bytes, 1), std::align_val_t(kAlignment)))) {
    std::memset(data, 0, bytes);
  }
  ~Buffer() { ::operator delete(data, std::align_val_t(kAlignment)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data;
};

// Hands the buffer to NumPy as an array of T.
template <class T>
nb::ndarray<nb::numpy, T> as_array(std::unique_ptr<Buffer> buffer,
                                   std::initializer_list<size_t> shape) {
  T* data = reinterpret_cast<T*>(buffer->data);
  nb::capsule owner(buffer.release(), [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return {data, shape, owner};
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

Format checked_format(int format) {
  if (!can_pack(Format(format)))
    refuse("tensor type " + std::to_string(format) + " has no native kernel");
  return Format(format);
}

int64_t checked_packed_bytes(Format format, int64_t n, int64_t k) {
  constexpr int64_t kMost = int64_t(1) << 31;
  if (n <= 0 || k <= 0 || n > kMost || k > kMost)
    refuse("matrix of " + std::to_string(n) + " x " + std::to_string(k) +
           ": sizes must be 1 to 2^31");
  const int64_t bytes = packed_bytes(format, n, k);
  if (bytes < 0)
    refuse("k = " + std::to_string(k) + " is no multiple of the block of tensor type " +
           std::to_string(int(format)));
  return bytes;
}

// Bytes of one row in the file's own layout.
int64_t stored_row_bytes(Format format, int64_t k) {
  switch (format) {
    case Format::f32:
      return 4 * k;
    case Format::f16:
    case Format::bf16:
      return 2 * k;
    case Format::q4_0:
    case Format::iq4_nl:
      return k / 32 * 18;
    case Format::q4_1:
      return k / 32 * 20;
    case Format::q5_0:
      return k / 32 * 22;
    case Format::q5_1:
      return k / 32 * 24;
    case Format::q8_0:
      return k / 32 * 34;
    case Format::q2_k:
      return k / 256 * 84;
    case Format::q3_k:
      return k / 256 * 110;
    case Format::q4_k:
      return k / 256 * 144;
    case Format::q5_k:
      return k / 256 * 176;
    case Format::q6_k:
      return k / 256 * 210;
    case Format::iq4_xs:
      return k / 256 * 136;
  }
  return -1;
}

void check_size(const char* what, size_t have, int64_t want) {
  if (int64_t(have) != want)
    refuse(std::string(what) + " has " + std::to_string(have) + " bytes, not " +
           std::to_string(want));
}

const KernelTable& checked_set(const std::string& name) {
  const KernelTable* set = kernel_set(name.c_str());
  if (!set) refuse("no kernel set '" + name + "' on this CPU");
  return *set;
}

NewBytes pack(int format_id, int64_t n, int64_t k, const Bytes& rows) {
  const Format format = checked_format(format_id);
  const int64_t bytes = checked_packed_bytes(format, n, k);
  check_size("rows", rows.size(), n * stored_row_bytes(format, k));
  auto out = std::make_unique<Buffer>(size_t(bytes));
  {
    nb::gil_scoped_release release;
    pack_rows(out->data, format, rows.data(), n, k, 0, (n + kPairRows - 1) / kPairRows);
  }
  return as_array<uint8_t>(std::move(out), {size_t(bytes)});
}

NewFloats embed(const std::string& set, int format_id, int64_t k, const Bytes& row, float scale) {
  const Format format = checked_format(format_id);
  checked_packed_bytes(format, 1, k);
  check_size("row", row.size(), stored_row_bytes(format, k));
  auto out = std::make_unique<Buffer>(size_t(k) * sizeof(float));
  checked_set(set).embed_row(reinterpret_cast<float*>(out->data), format, row.data(), k, scale);
  return as_array<float>(std::move(out), {size_t(k)});
}

// One call of one matrix, its activations and its items, for any number of plain threads.
class Layer {
 public:
  Layer(const KernelTable& set, Format format, int64_t n, const float* x, int64_t rows, int64_t k,
        const float* bias, int threads)
      : set_(set),
        kind_(set.act_kind(format)),
        x_(x),
        bias_(bias),
        acts_(set.act_bytes(kind_, rows, k)) {
    mat_ = {format, n, k, nullptr};
    call_ = {rows, k, acts_.data, 1, &mat_, &out_, &n_out_, &bias_, threads, nullptr};
    n_out_ = n;
    for (int i = 0; i < threads; i++)
      scratch_.push_back(std::make_unique<Buffer>(set.linear_scratch_bytes(call_)));
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  void store_activations(int64_t split) {
    const int64_t groups = (call_.k + kGroupValues - 1) / kGroupValues;
    for (int64_t tile = 0; tile < set_.act_tiles(kind_, call_.rows); tile++)
      for (int64_t g = 0; g < groups; g += split)
        set_.act_store(acts_.data, kind_, x_, call_.k, call_.rows, call_.k, tile, g,
                       std::min(g + split, groups));
  }

  // `order`: the items, in the order in which threads take them.
  void run(float* out, const uint8_t* weights, const std::vector<int64_t>& order) {
    mat_.data = weights;
    out_ = out;
    std::atomic<size_t> next{0};
    auto work = [&](size_t thread) {
      for (size_t i; (i = next.fetch_add(1)) < order.size();)
        set_.linear_run(call_, order[i], scratch_[thread]->data);
    };
    std::vector<std::thread> others;
    for (size_t t = 1; t < scratch_.size(); t++) others.emplace_back(work, t);
    work(0);
    for (auto& thread : others) thread.join();
  }

  std::vector<int64_t> items() const {
    std::vector<int64_t> order(size_t(set_.linear_items(call_)));
    for (size_t i = 0; i < order.size(); i++) order[i] = int64_t(i);
    return order;
  }

 private:
  const KernelTable& set_;
  ActKind kind_;
  const float* x_;
  const float* bias_;
  Buffer acts_;
  PackedMatrix mat_;
  float* out_ = nullptr;
  int64_t n_out_ = 0;
  LinearCall call_;
  std::vector<std::unique_ptr<Buffer>> scratch_;
};

int checked_threads(int threads) {
  if (threads < 1 || threads > 256)
    refuse("threads = " + std::to_string(threads) + ": must be 1 to 256");
  return threads;
}

NewFloats linear(const std::string& set, int format_id, const Bytes& packed, int64_t n,
                 const Matrix& x, const std::optional<Vector>& bias, int threads,
                 std::optional<uint32_t> shuffle, int64_t group_split) {
  const Format format = checked_format(format_id);
  const int64_t rows = int64_t(x.shape(0)), k = int64_t(x.shape(1));
  check_size("packed", packed.size(), checked_packed_bytes(format, n, k));
  if (rows < 1) refuse("x has no rows");
  if (group_split < 1) refuse("group_split must be at least 1");
  if (bias && int64_t(bias->size()) != n)
    refuse("bias has " + std::to_string(bias->size()) + " values, not " + std::to_string(n));
  Layer layer(checked_set(set), format, n, x.data(), rows, k, bias ? bias->data() : nullptr,
              checked_threads(threads));
  auto out = std::make_unique<Buffer>(size_t(rows * n) * sizeof(float));
  {
    nb::gil_scoped_release release;
    layer.store_activations(group_split);
    auto order = layer.items();
    if (shuffle) std::shuffle(order.begin(), order.end(), std::mt19937(*shuffle));
    layer.run(reinterpret_cast<float*>(out->data), packed.data(), order);
  }
  return as_array<float>(std::move(out), {size_t(rows), size_t(n)});
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs over copies of the weights in turn, so that they come from memory and not from a cache.
std::vector<double> linear_seconds(const std::string& set, int format_id, const Bytes& packed,
                                   int64_t n, const Matrix& x, int repeats, int64_t copies,
                                   bool activations_too) {
  const Format format = checked_format(format_id);
  const int64_t rows = int64_t(x.shape(0)), k = int64_t(x.shape(1));
  const int64_t bytes = checked_packed_bytes(format, n, k);
  check_size("packed", packed.size(), bytes);
  if (rows < 1 || repeats < 1 || copies < 1) refuse("rows, repeats and copies must be at least 1");
  Buffer weights(size_t(bytes * copies)), out(size_t(rows * n) * sizeof(float));
  for (int64_t i = 0; i < copies; i++)
    std::memcpy(weights.data + i * bytes, packed.data(), size_t(bytes));
  Layer layer(checked_set(set), format, n, x.data(), rows, k, nullptr, 1);
  const auto order = layer.items();
  nb::gil_scoped_release release;
  layer.store_activations(1 << 30);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; i++) {
    const double start = seconds_now();
    for (int64_t copy = 0; copy < copies; copy++) {
      if (activations_too) layer.store_activations(1 << 30);
      layer.run(reinterpret_cast<float*>(out.data), weights.data + copy * bytes, order);
    }
    seconds.push_back((seconds_now() - start) / double(copies));
  }
  return seconds;
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def(
      "can_pack", [](int format) { return can_pack(Format(format)); }, nb::arg("format"),
      "Whether a GGUF tensor type has native kernels.");
  m.def(
      "packed_bytes",
      [](int format, int64_t n, int64_t k) {
        return checked_packed_bytes(checked_format(format), n, k);
      },
      nb::arg("format"), nb::arg("n"), nb::arg("k"), "Bytes of a packed [n, k] matrix.");
  m.def("pack", &pack, nb::arg("format"), nb::arg("n"), nb::arg("k"), nb::arg("rows").noconvert(),
        "Repack the rows of a GGUF tensor [n, k] into panels; rows and result are bytes.");
  m.def("embed_row", &embed, nb::arg("kernel_set"), nb::arg("format"), nb::arg("k"),
        nb::arg("row").noconvert(), nb::arg("scale") = 1.0f,
        "One row in GGUF layout as float32 times scale.");
  m.def("linear", &linear, nb::arg("kernel_set"), nb::arg("format"), nb::arg("packed").noconvert(),
        nb::arg("n"), nb::arg("x").noconvert(), nb::arg("bias").noconvert() = nb::none(),
        nb::arg("threads") = 1, nb::arg("shuffle") = nb::none(), nb::arg("group_split") = 1 << 30,
        "x [rows, k] times the packed matrix [n, k], transposed: [rows, n]. shuffle: seed of the "
        "order of the items; group_split: groups per call that stores activations.");
  m.def("linear_seconds", &linear_seconds, nb::arg("kernel_set"), nb::arg("format"),
        nb::arg("packed").noconvert(), nb::arg("n"), nb::arg("x").noconvert(), nb::arg("repeats"),
        nb::arg("copies") = 1, nb::arg("activations_too") = false,
        "Seconds of one layer on one thread, for each repetition over `copies` of the weights.");
}
}  // namespace twostroke
