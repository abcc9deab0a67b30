// Threads that walk the sections of a step together. A section ends with its last item, not with
// the arrival of every thread: a thread that another process keeps off its core holds up the others
// by the item it has, and by nothing else. Waiting spins briefly, then sleeps.
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

// How the items of a section go to the threads.
enum class Deal {
  shares,  // each takes its own share in order, then steals from the others
  queue,   // one queue for all
  each,    // one item a thread, never stolen
};

// Items of one section. They may be dealt anew once all of the last ones are done.
class WorkShares {
 public:
  explicit WorkShares(int threads) : shares_(static_cast<size_t>(threads)) {}
  void reset(int64_t items, Deal deal);
  // Next item for `thread`, or -1 when none is left. What was written before reset is seen.
  int64_t claim(int thread);

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> left{0};  // counted down: a claim on an empty share does no harm
    int64_t end = 0;
  };

  std::atomic<bool> steal_{true};
  std::vector<Share> shares_;
};

// What a pool runs: sections of items, one after the other.
class Job {
 public:
  virtual void item(int64_t item, int thread) = 0;
  // Deals the items of the next section, while no other item runs; false: there is none.
  virtual bool advance() = 0;

 protected:
  ~Job() = default;
};

class ThreadPool {
 public:
  // Raises std::system_error when the machine gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }
  // Held by whoever runs a job.
  std::mutex& in_use() { return in_use_; }

  // Runs all sections, the caller as thread 0, denormals flushed.
  void run(Job& job);
  // For Job::advance: how many items come next, at least 1.
  void deal(int64_t items, Deal deal);
  // Runs one section of items: one(item, thread).
  template <class One>
  void run_items(int64_t items, Deal how, One& one) {
    struct Section final : Job {
      ThreadPool& pool;
      One& one;
      int64_t items;
      Deal how;
      Section(ThreadPool& p, One& o, int64_t n, Deal d) : pool(p), one(o), items(n), how(d) {}
      void item(int64_t item, int thread) override { one(item, thread); }
      bool advance() override {
        const bool any = items > 0;
        if (any) pool.deal(items, how);
        items = 0;
        return any;
      }
    } section(*this, one, items, how);
    run(section);
  }

 private:
  void work(int thread);
  void take_part(int thread);
  void stop();

  const int threads_;
  std::mutex in_use_;
  WorkShares shares_;
  Signal go_;  // raised for every section, and at the end of a job
  alignas(64) std::atomic<int64_t> done_{0};
  int64_t total_ = 0;  // items of the section; constant while one of them runs
  Job* job_ = nullptr;
  std::atomic<bool> finished_{true}, stopping_{false};
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
