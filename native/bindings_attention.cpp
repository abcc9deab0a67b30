// Cache, attention, row operations and sampling for tests and benchmarks: one kernel call at a
// time, without the recorded program.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "bindings.h"
#include "kernels.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace twostroke {
namespace {

using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using StridedHeads = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, float>;

void require(bool ok, const std::string& what) {
  if (!ok) throw nb::value_error(what.c_str());
}

const KernelTable& find_set(const std::string& name) {
  const KernelTable* set = kernel_set(name.c_str());
  require(set != nullptr, "this build and CPU have no kernel set '" + name + "'");
  return *set;
}

Array make_array(std::vector<size_t> shape) {
  size_t count = 1;
  for (size_t n : shape) count *= n;
  float* data = new float[count]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Array(data, shape.size(), shape.data(), owner);
}

template <class T>
std::unique_ptr<T[], void (*)(T*)> aligned_memory(size_t count) {
  void* p = std::aligned_alloc(64, (count * sizeof(T) + 64) / 64 * 64);
  if (!p) throw std::bad_alloc();
  return {static_cast<T*>(p), [](T* q) { std::free(q); }};
}

// Every worker of the real pool runs so: denormals are zeros.
void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { flush_denormals(); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

KvType kv_type(const std::string& name) {
  if (name == "bf16") return KvType::bf16;
  if (name == "f16") return KvType::f16;
  require(name == "q8", "a KV type is bf16, f16 or q8, not '" + name + "'");
  return KvType::q8;
}

// One layer's blocks, allotted and zeroed by the caller.
class KvCache {
 public:
  KvCache(const std::string& type, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim)
      : num_blocks_(num_blocks), memory_(nullptr, nullptr) {
    require(num_blocks > 0 && num_kv_heads > 0, "a cache has blocks and heads");
    require(head_dim > 0 && head_dim <= 256 && head_dim % 16 == 0,
            "head_dim is a multiple of 16 up to 256");
    layer_.type = kv_type(type);
    layer_.num_kv_heads = num_kv_heads;
    layer_.head_dim = head_dim;
    layer_.head_bytes = kv_head_bytes(layer_.type, head_dim);
    layer_.block_bytes = layer_.head_bytes * num_kv_heads;
    const size_t bytes = static_cast<size_t>(layer_.block_bytes * num_blocks);
    memory_ = aligned_memory<uint8_t>(bytes);
    std::memset(memory_.get(), 0, bytes);
    layer_.base = memory_.get();
  }

  const KvLayer& layer() const { return layer_; }
  int64_t num_blocks() const { return num_blocks_; }

  void append(const std::string& set, int64_t slot, const Matrix& k, const Matrix& v) {
    check_slot(slot);
    for (const Matrix* x : {&k, &v})
      require(static_cast<int64_t>(x->shape(0)) == layer_.num_kv_heads &&
                  static_cast<int64_t>(x->shape(1)) == layer_.head_dim,
              "k and v are [num_kv_heads, head_dim]");
    const FlushDenormals guard;
    find_set(set).kv_append(layer_, slot, k.data(), v.data());
  }

  std::pair<Array, Array> read(const std::string& set, int64_t slot) const {
    check_slot(slot);
    const std::vector<size_t> shape = {static_cast<size_t>(layer_.num_kv_heads),
                                       static_cast<size_t>(layer_.head_dim)};
    Array k = make_array(shape), v = make_array(shape);
    find_set(set).kv_read(k.data(), v.data(), layer_, slot);
    return {k, v};
  }

  void fill_block(int64_t block, int value) {
    check_slot(block * kBlockTokens);
    std::memset(layer_.base + block * layer_.block_bytes, value,
                static_cast<size_t>(layer_.block_bytes));
  }

  nb::bytes block(int64_t block) const {
    check_slot(block * kBlockTokens);
    return nb::bytes(reinterpret_cast<const char*>(layer_.base + block * layer_.block_bytes),
                     static_cast<size_t>(layer_.block_bytes));
  }

 private:
  void check_slot(int64_t slot) const {
    require(slot >= 0 && slot < num_blocks_ * kBlockTokens, "the slot is outside the cache");
  }
  int64_t num_blocks_;
  KvLayer layer_{};
  std::unique_ptr<uint8_t[], void (*)(uint8_t*)> memory_;
};

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

AttentionSeq make_seq(const KvCache& cache, int64_t num_heads, const nb::tuple& given, Array& out) {
  require(given.size() == 3, "a sequence is (q [nq, heads, head_dim], block table, length)");
  const auto q = nb::cast<StridedHeads>(given[0]);
  const auto table = nb::cast<Ids>(given[1]);
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
  out = make_array({q.shape(0), q.shape(1), q.shape(2)});
  return {q.data(), out.data(), table.data(), nq, len, q.stride(0), ldo};
}

struct Prepared {
  std::vector<AttentionSeq> seqs;
  std::vector<Array> outs;
  AttentionCall call;
};

void prepare(Prepared& p, const KvCache& cache, const nb::list& seqs, double scale, double soft_cap,
             int64_t window, int64_t threads) {
  require(nb::len(seqs) > 0 && threads >= 1 && window >= 0, "sequences, threads or window");
  const auto first = nb::cast<StridedHeads>(nb::cast<nb::tuple>(seqs[0])[0]);
  const int64_t heads = static_cast<int64_t>(first.shape(1));
  require(heads % cache.layer().num_kv_heads == 0, "heads is a multiple of num_kv_heads");
  for (nb::handle seq : seqs) {
    Array out;
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

std::vector<Array> attention(const std::string& set, const KvCache& cache, const nb::list& seqs,
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

Array rms_norm(const std::string& set, const Matrix& x, const Vector& weight, double eps) {
  require(x.shape(1) == weight.shape(0), "x is [rows, n] and weight [n]");
  Array out = make_array({x.shape(0), x.shape(1)});
  const int64_t n = static_cast<int64_t>(x.shape(1));
  for (int64_t r = 0; r < static_cast<int64_t>(x.shape(0)); r++)
    find_set(set).rms_norm(out.data() + r * n, x.data() + r * n, weight.data(), n,
                           static_cast<float>(eps));
  return out;
}

Array add_vectors(const std::string& set, const Vector& x, const Vector& y) {
  require(x.shape(0) == y.shape(0), "x and y are equally long");
  Array out = make_array({x.shape(0)});
  find_set(set).add(out.data(), x.data(), y.data(), static_cast<int64_t>(x.shape(0)));
  return out;
}

Array gated(const std::string& set, const Vector& gate, const Vector& up, const std::string& kind) {
  require(gate.shape(0) == up.shape(0), "gate and up are equally long");
  require(kind == "silu" || kind == "gelu_tanh", "an activation is silu or gelu_tanh");
  Array out = make_array({gate.shape(0)});
  find_set(set).gated(out.data(), gate.data(), up.data(), static_cast<int64_t>(gate.shape(0)),
                      kind == "silu" ? Activation::silu : Activation::gelu_tanh);
  return out;
}

Array rope(const std::string& set, const Matrix& x, int64_t position, const Matrix& cos,
           const Matrix& sin, bool interleaved) {
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin are alike");
  require(position >= 0 && position < static_cast<int64_t>(cos.shape(0)) &&
              2 * cos.shape(1) <= x.shape(1),
          "the position or the pairs are outside the table");
  Array out = make_array({x.shape(0), x.shape(1)});
  std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
  const RopeRows rows = {cos.data(), sin.data(), static_cast<int64_t>(cos.shape(1)), interleaved};
  find_set(set).rope(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)),
                     position, rows);
  return out;
}

Array copy_vector(const Vector& x) {
  Array out = make_array({x.shape(0)});
  std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
  return out;
}

Array soft_cap(const std::string& set, const Vector& x, double cap) {
  Array out = copy_vector(x);
  find_set(set).soft_cap(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<float>(cap));
  return out;
}

Array scale(const std::string& set, const Vector& x, double factor) {
  Array out = copy_vector(x);
  find_set(set).scale(out.data(), static_cast<int64_t>(x.shape(0)), static_cast<float>(factor));
  return out;
}

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
  row.num_logprobs = option(o, "num_logprobs", -1);
  row.target_id = option(o, "target_id", -1);
  const auto ids = [&](const char* name, const int32_t** data, int64_t* count) {
    if (!o.contains(name)) return;
    const auto array = nb::cast<Ids>(o[name]);
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
    const auto mask = nb::cast<Bits>(o["mask"]);
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

void bind_attention(nb::module_& m) {
  nb::class_<KvCache>(m, "KvCache", "One layer's paged cache, for tests and benchmarks.")
      .def(nb::init<const std::string&, int64_t, int64_t, int64_t>(), "type"_a, "num_blocks"_a,
           "num_kv_heads"_a, "head_dim"_a)
      .def("append", &KvCache::append, "kernel_set"_a, "slot"_a, "k"_a, "v"_a)
      .def("read", &KvCache::read, "kernel_set"_a, "slot"_a)
      .def("fill_block", &KvCache::fill_block, "block"_a, "value"_a)
      .def("block", &KvCache::block, "block"_a);
  m.def("attention", &attention, "kernel_set"_a, "cache"_a, "seqs"_a, "scale"_a, "soft_cap"_a = 0.0,
        "window"_a = 0, "threads"_a = 1, "seed"_a = 0,
        "Attend each (q [nq, heads, head_dim], block table, length); seed shuffles the items.");
  m.def("attention_seconds", &attention_seconds, "kernel_set"_a, "cache"_a, "seqs"_a, "scale"_a,
        "soft_cap"_a = 0.0, "window"_a = 0, "threads"_a = 1, "repeat"_a = 1,
        "Wall-clock seconds of each repetition of an attention call.");
  m.def("rms_norm", &rms_norm, "kernel_set"_a, "x"_a, "weight"_a, "eps"_a);
  m.def("add", &add_vectors, "kernel_set"_a, "x"_a, "y"_a);
  m.def("gated", &gated, "kernel_set"_a, "gate"_a, "up"_a, "kind"_a);
  m.def("rope", &rope, "kernel_set"_a, "x"_a, "position"_a, "cos"_a, "sin"_a, "interleaved"_a);
  m.def("soft_cap", &soft_cap, "kernel_set"_a, "x"_a, "cap"_a);
  m.def("scale", &scale, "kernel_set"_a, "x"_a, "factor"_a);
  m.def("sample", &sample, "kernel_set"_a, "logits"_a, "options"_a,
        "Choose one token; options are the fields of SampleRow. Returns SampleResult as a dict.");
}

}  // namespace twostroke
