// Single linear layers for tests and benchmarks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "bindings/testing/packing.h"
#include "block_formats.h"

namespace twostroke {
namespace {

// One call of one matrix, its activations and its items, for any number of plain threads.
class Layer {
 public:
  Layer(const KernelTable& set, Format format, int64_t n, const float* x, int64_t rows, int64_t k,
        const float* bias, int threads)
      : set_(set),
        kind_(set.act_kind(format)),
        x_(x),
        bias_(bias),
        acts_(aligned_memory<uint8_t>(set.act_bytes(kind_, rows, k))) {
    mat_ = {format, n, k, nullptr};
    call_ = {rows, k, acts_.get(), 1, &mat_, &out_, &n_out_, &bias_, threads, nullptr};
    n_out_ = n;
    for (int i = 0; i < threads; i++)
      scratch_.push_back(aligned_memory<uint8_t>(set.linear_scratch_bytes(call_)));
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  void store_activations(int64_t split) {
    const int64_t groups = (call_.k + kGroupValues - 1) / kGroupValues;
    for (int64_t tile = 0; tile < set_.act_tiles(kind_, call_.rows); tile++)
      for (int64_t g = 0; g < groups; g += split)
        set_.act_store(acts_.get(), kind_, x_, call_.k, call_.rows, call_.k, tile, g,
                       std::min(g + split, groups));
  }

  // `order`: the items, in the order in which threads take them.
  void run(float* out, const uint8_t* weights, const std::vector<int64_t>& order) {
    mat_.data = weights;
    out_ = out;
    std::atomic<size_t> next{0};
    auto work = [&](size_t thread) {
      for (size_t i; (i = next.fetch_add(1)) < order.size();)
        set_.linear_run(call_, order[i], scratch_[thread].get());
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
  Aligned<uint8_t> acts_;
  PackedMatrix mat_;
  float* out_ = nullptr;
  int64_t n_out_ = 0;
  LinearCall call_;
  std::vector<Aligned<uint8_t>> scratch_;
};

int checked_threads(int threads) {
  if (threads < 1 || threads > 256)
    fail("threads = " + std::to_string(threads) + ": must be 1 to 256");
  return threads;
}

NewFloats linear(const std::string& set, int format_id, const Array<uint8_t>& packed, int64_t n,
                 const Matrix& x, const std::optional<Vector>& bias, int threads,
                 std::optional<uint32_t> shuffle, int64_t group_split) {
  const Format format = checked_format(format_id);
  const int64_t rows = int64_t(x.shape(0)), k = int64_t(x.shape(1));
  check_size("packed", packed.size(), checked_packed_bytes(format, n, k));
  if (rows < 1) fail("x has no rows");
  if (group_split < 1) fail("group_split must be at least 1");
  if (bias && int64_t(bias->size()) != n)
    fail("bias has " + std::to_string(bias->size()) + " values, not " + std::to_string(n));
  Layer layer(find_set(set), format, n, x.data(), rows, k, bias ? bias->data() : nullptr,
              checked_threads(threads));
  auto out = make_array<float>({size_t(rows), size_t(n)});
  nb::gil_scoped_release release;
  layer.store_activations(group_split);
  auto order = layer.items();
  if (shuffle) std::shuffle(order.begin(), order.end(), std::mt19937(*shuffle));
  layer.run(out.data(), packed.data(), order);
  return out;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs over copies of the weights in turn, so that they come from memory and not from a cache.
std::vector<double> linear_seconds(const std::string& set, int format_id,
                                   const Array<uint8_t>& packed, int64_t n, const Matrix& x,
                                   int repeats, int64_t copies, bool activations_too) {
  const Format format = checked_format(format_id);
  const int64_t rows = int64_t(x.shape(0)), k = int64_t(x.shape(1));
  const int64_t bytes = checked_packed_bytes(format, n, k);
  check_size("packed", packed.size(), bytes);
  if (rows < 1 || repeats < 1 || copies < 1) fail("rows, repeats and copies must be at least 1");
  const auto weights = aligned_memory<uint8_t>(size_t(bytes * copies));
  const auto out = aligned_memory<float>(size_t(rows * n));
  for (int64_t i = 0; i < copies; i++)
    std::memcpy(weights.get() + i * bytes, packed.data(), size_t(bytes));
  Layer layer(find_set(set), format, n, x.data(), rows, k, nullptr, 1);
  const auto order = layer.items();
  nb::gil_scoped_release release;
  layer.store_activations(1 << 30);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; i++) {
    const double start = seconds_now();
    for (int64_t copy = 0; copy < copies; copy++) {
      if (activations_too) layer.store_activations(1 << 30);
      layer.run(out.get(), weights.get() + copy * bytes, order);
    }
    seconds.push_back((seconds_now() - start) / double(copies));
  }
  return seconds;
}

}  // namespace

void bind_linear(nb::module_& m) {
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
