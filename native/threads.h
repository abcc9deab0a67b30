// Fork-join pool whose threads walk the sections of a step together. Waiting spins briefly, then
// sleeps: an unbounded spin collapses as soon as another process takes a core.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace twostroke {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A word that threads wait on until it changes.
class Signal {
 public:
  uint32_t value() const { return word_.load(std::memory_order_acquire); }
  // Changes the word and wakes whoever sleeps on it.
  void raise() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) word_.notify_all();
  }
  // Returns once the word is no longer `seen`, after at most `spin` of burning the core.
  void await(uint32_t seen, std::chrono::microseconds spin);

 private:
  alignas(64) std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Barrier of n threads whose last arrival runs a serial part before the others go on.
class Barrier {
 public:
  explicit Barrier(int n) : n_(n) {}
  template <class Serial>
  void arrive(Serial&& serial) {
    const uint32_t seen = go_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_) {
      go_.await(seen, std::chrono::microseconds(30));
      return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    serial();
    if (n_ > 1) go_.raise();
  }

 private:
  const int n_;
  alignas(64) std::atomic<int> arrived_{0};
  Signal go_;
};

// Items of one section: every thread takes its own share in order, then steals from the others.
class WorkShares {
 public:
  explicit WorkShares(int threads) : shares_(static_cast<size_t>(threads)) {}
  // Called by one thread while no other claims. `in_order`: one queue for all instead of shares.
  void reset(int64_t items, bool in_order = false);
  // Next item for `thread`, or -1 when none is left.
  int64_t claim(int thread);

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;
};

class ThreadPool {
 public:
  // Raises std::system_error when the machine gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }
  // Held by whoever uses the pool, from resetting the shares to the end of run.
  std::mutex& in_use() { return in_use_; }
  Barrier& barrier() { return barrier_; }
  WorkShares& shares() { return shares_; }

  // Runs body(context, thread) on every thread, the caller as thread 0, denormals flushed; returns
  // when all have returned.
  void run(void (*body)(void*, int), void* context);

  template <class Body>
  void run(Body& body) {
    run([](void* context, int thread) { (*static_cast<Body*>(context))(thread); }, &body);
  }

 private:
  void work(int thread);
  void stop();

  const int threads_;
  std::mutex in_use_;
  Barrier barrier_;   // between sections
  Barrier finished_;  // end of run
  WorkShares shares_;
  Signal start_;
  std::atomic<bool> stopping_{false};
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

// Flushes denormals on this thread while alive, so that kernels see one arithmetic everywhere.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();

 private:
  uint64_t saved_;
};

}  // namespace twostroke
