#include "threads.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace twostroke {

namespace {
constexpr std::chrono::microseconds kIdleSpin(100);  // between the steps of one generation
constexpr int kRelaxesPerClock = 16;
}  // namespace

void Signal::await(uint32_t seen, std::chrono::microseconds spin) {
  for (int i = 0; i < 64; i++) {
    if (value() != seen) return;
    cpu_relax();
  }
  const auto until = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < kRelaxesPerClock; i++) {
      if (value() != seen) return;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  word_.wait(seen, std::memory_order_seq_cst);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void WorkShares::reset(int64_t items, bool in_order) {
  const int64_t n = static_cast<int64_t>(shares_.size());
  for (int64_t t = 0; t < n; t++) {
    shares_[t].next.store(in_order ? 0 : items * t / n, std::memory_order_relaxed);
    shares_[t].end = in_order ? (t ? 0 : items) : items * (t + 1) / n;
  }
}

int64_t WorkShares::claim(int thread) {
  const int n = static_cast<int>(shares_.size());
  for (int i = 0; i < n; i++) {
    Share& share = shares_[(thread + i) % n];
    if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
    const int64_t item = share.next.fetch_add(1, std::memory_order_relaxed);
    if (item < share.end) return item;
  }
  return -1;
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads), barrier_(threads), finished_(threads), shares_(threads) {
  try {
    for (int t = 1; t < threads; t++) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  start_.raise();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(void (*body)(void*, int), void* context) {
  FlushDenormals flush;
  body_ = body;
  context_ = context;
  if (threads_ > 1) start_.raise();
  body(context, 0);
  finished_.arrive([] {});
}

void ThreadPool::work(int thread) {
  FlushDenormals flush;
  for (uint32_t seen = 0;;) {
    start_.await(seen, kIdleSpin);
    // One raise per run, and a run ends only when every thread has arrived: none can be missed.
    seen++;
    if (stopping_.load(std::memory_order_seq_cst)) return;
    body_(context_, thread);
    finished_.arrive([] {});
  }
}

#if defined(__x86_64__)
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040);  // FTZ and DAZ
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ | (1ull << 24)));
}
FlushDenormals::~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() {}
#endif

}  // namespace twostroke
