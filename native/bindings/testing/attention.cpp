// Attention calls for tests and benchmarks, without a recorded program.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "bindings/testing/kv_cache.h"

using namespace nanobind::literals;

namespace twostroke {
namespace {

using StridedHeads = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;

// A planned attention call: its items, partials and counters.
class AttentionRun {
 public:
  AttentionRun(const KernelTable& set, const AttentionCall& call)
      : set_(set), call_(call), partials_(nullptr, nullptr) {
    items_.resize(static_cast<size_t>(set.attention_max_items(call)));
    int64_t floats = 0;
    items_.resize(static_cast<size_t>(set.attention_plan(call, items_.data(), &floats)));
    partials_ = aligned_memory<float>(static_cast<size_t>(floats));
    done_.resize(static_cast<size_t>(call.num_seqs * call.kv.num_kv_heads));
  }

  void shuffle(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::shuffle(items_.begin(), items_.end(), random);
  }

  void run() {
    std::fill(done_.begin(), done_.end(), 0);
    next_ = 0;
    std::vector<std::thread> workers;
    for (int64_t i = 1; i < call_.threads; i++) workers.emplace_back([this] { work(); });
    work();
    for (std::thread& worker : workers) worker.join();
  }

 private:
  void work() {
    const FlushDenormals guard;
    const auto scratch = aligned_memory<uint8_t>(set_.attention_scratch_bytes(call_));
    for (size_t i; (i = next_.fetch_add(1)) < items_.size();) {
      const AttentionItem* ahead = i + 1 < items_.size() ? &items_[i + 1] : nullptr;
      set_.attention_run(call_, items_[i], ahead, scratch.get(), partials_.get(), done_.data());
    }
  }

  const KernelTable& set_;
  AttentionCall call_;
  std::vector<AttentionItem> items_;
  std::unique_ptr<float[], void (*)(float*)> partials_;
  std::vector<int32_t> done_;
  std::atomic<size_t> next_{0};
};

AttentionSeq make_seq(const KvCache& cache, int64_t num_heads, const nb::tuple& given,
                      NewFloats& out) {
  require(given.size() == 3, "a sequence is (q [nq, heads, head_dim], block table, length)");
  const auto q = nb::cast<StridedHeads>(given[0]);
  const auto table = nb::cast<Array<int32_t>>(given[1]);
  const auto len = nb::cast<int64_t>(given[2]);
  const int64_t dim = cache.layer().head_dim, nq = static_cast<int64_t>(q.shape(0));
  require(static_cast<int64_t>(q.shape(1)) == num_heads &&
              static_cast<int64_t>(q.shape(2)) == dim && q.stride(2) == 1 && q.stride(1) == dim,
          "q is [nq, heads, head_dim] with the heads of a row side by side");
  require(nq >= 1 && nq <= len, "1 <= nq <= length");
  require((len + kBlockTokens - 1) / kBlockTokens <= static_cast<int64_t>(table.shape(0)),
          "the block table is shorter than the sequence");
  for (int64_t b = 0; b * kBlockTokens < len; b++)
    require(table.data()[b] >= 0 && table.data()[b] < cache.num_blocks(),
            "the block table names a block outside the cache");
  const int64_t ldo = num_heads * dim;
  out = make_array<float>({q.shape(0), q.shape(1), q.shape(2)});
  return {q.data(), out.data(), table.data(), nq, len, q.stride(0), ldo};
}

struct Prepared {
  std::vector<AttentionSeq> seqs;
  std::vector<NewFloats> outs;
  AttentionCall call;
};

void prepare(Prepared& p, const KvCache& cache, const nb::list& seqs, double scale, double soft_cap,
             int64_t window, int64_t threads) {
  require(nb::len(seqs) > 0 && threads >= 1 && window >= 0, "sequences, threads or window");
  const auto first = nb::cast<StridedHeads>(nb::cast<nb::tuple>(seqs[0])[0]);
  const int64_t heads = static_cast<int64_t>(first.shape(1));
  require(heads % cache.layer().num_kv_heads == 0, "heads is a multiple of num_kv_heads");
  for (nb::handle seq : seqs) {
    NewFloats out;
    p.seqs.push_back(make_seq(cache, heads, nb::cast<nb::tuple>(seq), out));
    p.outs.push_back(out);
  }
  p.call = {cache.layer(),
            heads,
            static_cast<float>(scale),
            static_cast<float>(soft_cap),
            window,
            p.seqs.data(),
            static_cast<int64_t>(p.seqs.size()),
            threads};
}

std::vector<NewFloats> attention(const std::string& set, const KvCache& cache, const nb::list& seqs,
                                 double scale, double soft_cap, int64_t window, int64_t threads,
                                 uint64_t seed) {
  Prepared p;
  prepare(p, cache, seqs, scale, soft_cap, window, threads);
  AttentionRun run(find_set(set), p.call);
  if (seed) run.shuffle(seed);
  nb::gil_scoped_release release;
  run.run();
  return p.outs;
}

std::vector<double> attention_seconds(const std::string& set, const KvCache& cache,
                                      const nb::list& seqs, double scale, double soft_cap,
                                      int64_t window, int64_t threads, int64_t repeat) {
  Prepared p;
  prepare(p, cache, seqs, scale, soft_cap, window, threads);
  AttentionRun run(find_set(set), p.call);
  nb::gil_scoped_release release;
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeat; i++) {
    const auto start = std::chrono::steady_clock::now();
    run.run();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention", &attention, "kernel_set"_a, "cache"_a, "seqs"_a, "scale"_a, "soft_cap"_a = 0.0,
        "window"_a = 0, "threads"_a = 1, "seed"_a = 0,
        "Attend each (q [nq, heads, head_dim], block table, length); seed shuffles the items.");
  m.def("attention_seconds", &attention_seconds, "kernel_set"_a, "cache"_a, "seqs"_a, "scale"_a,
        "soft_cap"_a = 0.0, "window"_a = 0, "threads"_a = 1, "repeat"_a = 1,
        "Wall-clock seconds of each repetition of an attention call.");
}

}  // namespace twostroke
