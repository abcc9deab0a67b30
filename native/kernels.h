// The table of kernels: one per instruction set, filled by isa/*.cpp from the same bodies.
// Kernels take raw pointers and 64-bit sizes: outputs, then inputs, then sizes. They allocate
// nothing and throw nothing. Same bits: every float sum of one row has one fixed order, whatever
// the number of rows, items, threads or chunks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace twostroke {

// Ids of GGUF (ggml) tensor types.
enum class Format : int32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
};

// A weight matrix [n, k] repacked into panels (block_formats.h); rows n are output channels.
struct PackedMatrix {
  Format format;
  int64_t n, k;
  const uint8_t* data;
};

// The form in which a linear kernel reads activations, in tiles of at most 8 rows: for integer
// weights int8 per 32 values with a float scale and sums, for bf16 weights bf16 rows, for f16 and
// f32 weights float rows.
using ActKind = int32_t;

struct LinearCall {
  int64_t rows, k;
  const void* acts;  // written by act_store for act_kind(mats[i].format), one kind for all mats
  int64_t count;     // matrices that share the activations (q, k, v or gate, up)
  const PackedMatrix* mats;    // [count]
  float* const* outs;          // [count], each [rows, ldo[i]]
  const int64_t* ldo;          // [count]
  const float* const* biases;  // [count], entries may be null
  int64_t threads;
  const uint8_t* next;  // first bytes of the matrix read after this call, for prefetch; may be null
};

// ---- attention over the paged cache
enum class KvType : int32_t { bf16 = 0, f16 = 1, q8 = 2 };

constexpr int64_t kBlockTokens = 16;  // tokens of a cache block
// Keys scored at once, and keys of a split. Both are counted from position 0 and fix the order of
// sums: changing them changes bits.
constexpr int64_t kStepKeys = 64;
constexpr int64_t kSplitKeys = 256;

// One layer's cache: block b, head h at base + b * block_bytes + h * head_bytes; [K part][V part]
// per head.
struct KvLayer {
  KvType type;
  int64_t num_kv_heads, head_dim;
  int64_t head_bytes, block_bytes;
  uint8_t* base;
};

// The last nq of len positions of one request.
struct AttentionSeq {
  const float* q;        // [nq, ldq], heads side by side
  float* out;            // [nq, ldo]
  const int32_t* table;  // block ids
  int64_t nq, len, ldq, ldo;
};

struct AttentionCall {
  KvLayer kv;
  int64_t num_heads;
  float scale;     // multiplies q.k before the soft cap
  float soft_cap;  // 0: none; else cap * tanh(score / cap)
  int64_t window;  // 0: all keys; else a query at position p sees keys (p - window, p]
  const AttentionSeq* seqs;
  int64_t num_seqs;
  int64_t threads;
};

// How one request's attention is cut into items: tiles of query tokens, each over all keys
// (prefill), or splits of the keys, each for all query tokens (decode).
enum class AttentionCut : int32_t { tile, split };

// The work of one KV head that any thread may take.
struct AttentionItem {
  AttentionCut cut;
  int32_t seq, kv_head;
  int32_t first_token, end_token;  // tile: query tokens [first_token, end_token) of the request
  int32_t split;                   // split: keys [split * kSplitKeys, (split + 1) * kSplitKeys)
  int64_t partials;                // split: where this (seq, kv_head) keeps its splits, in floats
  int64_t cost;                    // keys x rows
};

// ---- sampling
struct SampleRow {
  float temperature;  // 0: greedy
  int32_t top_k;      // 0: all
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  uint32_t choice;
  uint64_t position;
  const int32_t* bias_ids;  // [num_bias]
  const float* biases;
  int64_t num_bias;
  const int32_t* prompt_ids;  // ids that only the repetition penalty looks at
  int64_t num_prompt;
  const int32_t* output_ids;  // ids that all three penalties look at
  int64_t num_output;
  const uint32_t* mask;  // bit i set: token i allowed; null: all allowed
  bool wants_logprobs;   // of the chosen token and of the num_top best
  int32_t num_top;
  bool wants_target;  // also the log-probability of target_id
  int32_t target_id;
};
constexpr int32_t kNoToken = -1;  // no logit is finite
struct SampleResult {
  int32_t token_id;      // or kNoToken
  float logprob;         // of token_id, from the raw logits; NaN when not asked
  float target_logprob;  // NaN when not asked
  int32_t top_ids[32];
  float top_logprobs[32];
  int32_t num_top;
};

struct RopeRows {
  const float* cos;  // [positions, pairs]
  const float* sin;
  int64_t pairs;     // rotated pairs: head_dim / 2, or fewer for partial rotary
  bool interleaved;  // pairs (2i, 2i+1) as in GGUF llama; else (i, i + pairs)
};

enum class Activation : int32_t { silu = 0, gelu_tanh = 1 };

struct KernelTable {
  const char* name;

  // ---- linear (body/linear.inc)
  ActKind (*act_kind)(Format);
  size_t (*act_bytes)(ActKind, int64_t rows, int64_t k);
  int64_t (*act_tiles)(ActKind, int64_t rows);
  void (*act_tile_range)(ActKind, int64_t rows, int64_t tile, int64_t* begin, int64_t* end);
  // Stores tile `tile` of `rows` rows x [rows, ldx], values [32 * group0, 32 * group1) only;
  // group0 is a multiple of 8.
  void (*act_store)(void* acts, ActKind, const float* x, int64_t ldx, int64_t rows, int64_t k,
                    int64_t tile, int64_t group0, int64_t group1);
  size_t (*linear_scratch_bytes)(const LinearCall&);  // per thread
  int64_t (*linear_items)(const LinearCall&);
  void (*linear_run)(const LinearCall&, int64_t item, void* scratch);
  // `row` lies in the layout of the GGUF file, not packed.
  void (*embed_row)(float* out, Format, const uint8_t* row, int64_t k, float scale);

  // ---- rows (body/rows.inc): every call works on one row or on an elementwise range
  // out may be x.
  void (*rms_norm)(float* out, const float* x, const float* weight, int64_t n, float eps);
  void (*add)(float* out, const float* x, const float* y, int64_t n);  // out may be x
  void (*gated)(float* out, const float* gate, const float* up, int64_t n, Activation);
  // In place.
  void (*rope)(float* x, int64_t heads, int64_t head_dim, int64_t position, const RopeRows&);
  void (*soft_cap)(float* x, int64_t n, float cap);  // in place

  // ---- cache and attention (body/attention.inc)
  // One token, all heads; kv_read returns the values as stored.
  void (*kv_append)(const KvLayer&, int64_t slot, const float* k, const float* v);
  void (*kv_read)(float* k, float* v, const KvLayer&, int64_t slot);
  size_t (*attention_scratch_bytes)(const AttentionCall&);  // per thread
  // Fills items (capacity from attention_max_items) in the order of the requests. Returns their
  // number and the floats of partials needed.
  int64_t (*attention_max_items)(const AttentionCall&);
  int64_t (*attention_plan)(const AttentionCall&, AttentionItem* items, int64_t* partial_floats);
  // splits_done: [num_seqs * num_kv_heads] zeroed counters; next: the item that this thread will
  // probably run afterwards, for prefetch, or null.
  void (*attention_run)(const AttentionCall&, const AttentionItem&, const AttentionItem* next,
                        void* scratch, float* partials, int32_t* splits_done);

  // ---- sampling (body/sample.inc)
  size_t (*sample_scratch_bytes)(int64_t vocab);
  void (*sample)(SampleResult* out, const float* logits, int64_t vocab, const SampleRow&,
                 void* scratch);
};

int64_t kv_head_bytes(KvType, int64_t head_dim);  // bytes of one head's block: K part and V part

// dispatch.cpp: the sets of this build and CPU, best first, ended by null; one by name, or null.
const KernelTable* const* kernel_sets();
const KernelTable* kernel_set(const char* name);
// Tables that no engine chooses: "avx512-bf16-dot" and "avx512-bf16-fma" multiply bf16 keys by one
// way each, whatever the CPU. Tests hold them to the same bits. Null: not here.
const KernelTable* kernel_variant(const char* name);

}  // namespace twostroke
