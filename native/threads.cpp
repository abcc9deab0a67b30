#include "threads.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace twostroke {

namespace {
constexpr std::chrono::microseconds kSectionSpin(30);  // between the sections of a step
constexpr std::chrono::microseconds kIdleSpin(100);    // between the steps of one generation
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
  count_.wait(seen, std::memory_order_seq_cst);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void WorkShares::reset(int64_t items, Schedule schedule) {
  const int64_t n = static_cast<int64_t>(shares_.size());
  const bool is_queue = schedule == Schedule::shared_queue;
  steal_.store(schedule != Schedule::one_per_thread, std::memory_order_relaxed);
  for (int64_t t = 0; t < n; t++) {
    // The queue is the share of thread 0: the others steal from it.
    const int64_t begin = is_queue ? 0 : items * t / n;
    shares_[t].end = !is_queue ? items * (t + 1) / n : t == 0 ? items : 0;
    shares_[t].left.store(shares_[t].end - begin, std::memory_order_release);
  }
}

int64_t WorkShares::claim(int thread) {
  const int n = static_cast<int>(shares_.size());
  for (int i = 0; i < n; i++) {
    Share& share = shares_[(thread + i) % n];
    if (share.left.load(std::memory_order_relaxed) > 0) {
      if (i && !steal_.load(std::memory_order_relaxed)) return kNoItem;
      const int64_t left = share.left.fetch_sub(1, std::memory_order_acquire);
      if (left > 0) return share.end - left;
    }
  }
  return kNoItem;
}

ThreadPool::ThreadPool(int threads) : threads_(threads), shares_(threads) {
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
  go_.raise();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::start_section(int64_t items, Schedule schedule) {
  total_ = items;
  done_.store(0, std::memory_order_relaxed);
  shares_.reset(items, schedule);
}

// Runs items until none is left. The thread that ends the section's last item starts the next one.
void ThreadPool::take_part(int thread) {
  int64_t mine = 0;
  for (int64_t item; (item = shares_.claim(thread)) != kNoItem; mine++) job_->item(item, thread);
  if (!mine) return;
  const int64_t total = total_;  // read before the count below lets others go on
  if (done_.fetch_add(mine, std::memory_order_acq_rel) + mine < total) return;
  if (!job_->advance()) finished_.store(true, std::memory_order_release);
  if (threads_ > 1) go_.raise();
}

void ThreadPool::run(Job& job) {
  FlushDenormals flush;
  job_ = &job;
  finished_.store(false, std::memory_order_relaxed);
  if (!job.advance())
    finished_.store(true, std::memory_order_relaxed);
  else if (threads_ > 1)
    go_.raise();
  for (;;) {
    const uint32_t seen = go_.value();
    if (finished_.load(std::memory_order_acquire)) return;
    take_part(0);
    if (threads_ > 1) go_.await(seen, kSectionSpin);
  }
}

void ThreadPool::work(int thread) {
  FlushDenormals flush;
  for (;;) {
    const uint32_t seen = go_.value();
    if (stopping_.load(std::memory_order_seq_cst)) return;
    take_part(thread);
    go_.await(seen, finished_.load(std::memory_order_relaxed) ? kIdleSpin : kSectionSpin);
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
