// The loops carry their instruction sets by attribute, so that this file runs on any CPU.
#include "measure.h"

#include <chrono>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twostroke {

namespace {
constexpr int kRounds = 20000;    // of an arithmetic loop between two readings of the clock
constexpr int64_t kAhead = 4096;  // bytes of prefetch, as in the kernels

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keeps a value alive without storing it.
template <class T>
inline void keep(T& value) {
  asm volatile("" : "+m"(value));
}

using Loop = double (*)();  // runs kRounds rounds, returns their operations

typedef float Floats4 __attribute__((vector_size(16)));

double fp32_plain() {
  Floats4 sum[10] = {}, a = {1e-3f, 1e-3f, 1e-3f, 1e-3f}, b = a;
  for (int i = 0; i < kRounds; i++) {
    for (int k = 0; k < 10; k++) sum[k] = sum[k] + a * b;
    keep(a);
  }
  for (auto& s : sum) keep(s);
  return kRounds * 10.0 * 8;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double fp32_avx2() {
  __m256 sum[12], a = _mm256_set1_ps(1e-3f), b = a;
  for (auto& s : sum) s = _mm256_setzero_ps();
  for (int i = 0; i < kRounds; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++) sum[k] = _mm256_fmadd_ps(a, b, sum[k]);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (auto& s : sum) keep(s);
  return kRounds * 12.0 * 16;
}

__attribute__((target("avx2"))) double int8_avx2() {
  __m256i sum[10], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
  for (auto& s : sum) s = _mm256_setzero_si256();
  for (int i = 0; i < kRounds; i++) {
#pragma GCC unroll 10
    for (int k = 0; k < 10; k++) {
      const __m256i pairs = _mm256_maddubs_epi16(a, b);
      sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(pairs, one));
      asm volatile("" : "+x"(a), "+x"(b));
    }
  }
  for (auto& s : sum) keep(s);
  return kRounds * 10.0 * 64;
}

__attribute__((target("avx512f"))) double fp32_avx512() {
  __m512 sum[12], a = _mm512_set1_ps(1e-3f), b = a;
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (int i = 0; i < kRounds; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++) sum[k] = _mm512_fmadd_ps(a, b, sum[k]);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto& s : sum) keep(s);
  return kRounds * 12.0 * 32;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512() {
  __m512 sum[12];
  __m512i a = _mm512_set1_epi32(0x3a803a80), b = a;
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (int i = 0; i < kRounds; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++) sum[k] = _mm512_dpbf16_ps(sum[k], (__m512bh)a, (__m512bh)b);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto& s : sum) keep(s);
  return kRounds * 12.0 * 64;
}

__attribute__((target("avx512f,avx512vnni"))) double int8_avx512() {
  __m512i sum[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (auto& s : sum) s = _mm512_setzero_si512();
  for (int i = 0; i < kRounds; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++) sum[k] = _mm512_dpbusd_epi32(sum[k], a, b);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto& s : sum) keep(s);
  return kRounds * 12.0 * 128;
}

__attribute__((target("avx512f"))) void read_avx512(const uint8_t* p, int64_t n) {
  __m512i sum[8];
  for (auto& s : sum) s = _mm512_setzero_si512();
  for (int64_t i = 0; i + 512 <= n; i += 512) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + k * 64 + kAhead), _MM_HINT_T1);
      sum[k] = _mm512_or_si512(sum[k], _mm512_loadu_si512(p + i + k * 64));
    }
  }
  for (auto& s : sum) keep(s);
}

__attribute__((target("avx2"))) void read_avx2(const uint8_t* p, int64_t n) {
  __m256i sum[8];
  for (auto& s : sum) s = _mm256_setzero_si256();
  for (int64_t i = 0; i + 256 <= n; i += 256) {
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2)
      _mm_prefetch(reinterpret_cast<const char*>(p + i + k * 32 + kAhead), _MM_HINT_T1);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
      sum[k] = _mm256_or_si256(
          sum[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + k * 32)));
  }
  for (auto& s : sum) keep(s);
}
#endif

void read_plain(const uint8_t* p, int64_t n) {
  typedef uint64_t Words __attribute__((vector_size(16)));
  Words sum[4] = {};
  for (int64_t i = 0; i + 64 <= n; i += 64) {
    __builtin_prefetch(p + i + kAhead, 0, 2);
    for (int k = 0; k < 4; k++) {
      Words w;
      std::memcpy(&w, p + i + k * 16, 16);
      sum[k] |= w;
    }
  }
  for (auto& s : sum) keep(s);
}

using Reader = void (*)(const uint8_t*, int64_t);

Reader reader() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

Loop loop_of([[maybe_unused]] const char* set, Peak peak) {
#if defined(__x86_64__)
  if (!std::strcmp(set, "avx512"))
    return peak == Peak::fp32 ? fp32_avx512 : peak == Peak::bf16 ? bf16_avx512 : int8_avx512;
  if (!std::strcmp(set, "avx2"))
    return peak == Peak::fp32 ? fp32_avx2 : peak == Peak::int8 ? int8_avx2 : nullptr;
#endif
  return peak == Peak::fp32 ? fp32_plain : nullptr;
}

struct alignas(64) Rate {
  double amount = 0, seconds = 0;
};

// The sum of every thread's own rate: a delayed thread counts with its rate while it ran.
template <class Work>
double run_for(ThreadPool& pool, double seconds, Work& work) {
  std::vector<Rate> rates(static_cast<size_t>(pool.size()));
  auto one = [&](int64_t item, int) {
    Rate& rate = rates[item];
    const double start = now_s();
    do {
      rate.amount += work(static_cast<int>(item));
      rate.seconds = now_s() - start;
    } while (rate.seconds < seconds);
  };
  std::lock_guard lock(pool.in_use());
  pool.run_items(pool.size(), Schedule::one_per_thread, one);
  double total = 0;
  for (const Rate& rate : rates) total += rate.amount / rate.seconds;
  return total;
}
}  // namespace

double read_bytes_per_s(ThreadPool& pool, const uint8_t* memory, int64_t bytes, double seconds) {
  const Reader read = reader();
  const int64_t share = bytes / pool.size() / 4096 * 4096;
  auto work = [&](int thread) {
    read(memory + thread * share, share);
    return static_cast<double>(share);
  };
  return share ? run_for(pool, seconds, work) : 0;
}

double peak_ops_per_s(ThreadPool& pool, const char* kernel_set, Peak peak, double seconds) {
  const Loop loop = loop_of(kernel_set, peak);
  auto work = [&](int) { return loop(); };
  return loop ? run_for(pool, seconds, work) : 0;
}

}  // namespace twostroke
