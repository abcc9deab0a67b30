// Threads that run the sections of a job together. A section ends with its last item, not with the
// arrival of every thread: a thread that another process keeps off its core delays the others by
// the item it has claimed, and by nothing else. A waiting thread spins briefly, then sleeps.
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

// A count of events that threads wait on.
class Signal {
 public:
  uint32_t value() const { return count_.load(std::memory_order_acquire); }
  // Counts an event and wakes the sleeping threads.
  void raise() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) count_.notify_all();
  }
  // Returns once the count is no longer `seen`. Spins for at most `spin`, then sleeps.
  void await(uint32_t seen, std::chrono::microseconds spin);

 private:
  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Which thread runs which item of a section.
enum class Schedule {
  work_stealing,   // each thread runs its own share in order, then items of other shares
  shared_queue,    // all threads take the next item of one queue
  one_per_thread,  // each thread runs its own item alone
};

constexpr int64_t kNoItem = -1;

// The items of one section. May be reset once all items have run.
class WorkShares {
 public:
  explicit WorkShares(int threads) : shares_(static_cast<size_t>(threads)) {}
  void reset(int64_t items, Schedule);
  // Next item for `thread`, or kNoItem. The thread then sees all that was written before reset.
  int64_t claim(int thread);

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> left{0};  // counted down: a claim on an empty share does no harm
    int64_t end = 0;
  };

  std::atomic<bool> steal_{true};
  std::vector<Share> shares_;
};

// Sections of items that a pool runs one after the other.
class Job {
 public:
  virtual void item(int64_t item, int thread) = 0;
  // Starts the next section by ThreadPool::start_section, while no item runs; false: none is left.
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
  // The caller of run() holds it.
  std::mutex& in_use() { return in_use_; }

  // Runs all sections, the caller as thread 0, denormals flushed.
  void run(Job& job);
  // For Job::advance: the number of items that come next, at least 1.
  void start_section(int64_t items, Schedule);
  // Runs one section of items: run_one(item, thread).
  template <class RunOne>
  void run_items(int64_t items, Schedule schedule, RunOne& run_one) {
    struct OneSection final : Job {
      ThreadPool& pool;
      RunOne& run_one;
      int64_t items;
      Schedule schedule;
      OneSection(ThreadPool& p, RunOne& r, int64_t n, Schedule s)
          : pool(p), run_one(r), items(n), schedule(s) {}
      void item(int64_t item, int thread) override { run_one(item, thread); }
      bool advance() override {
        const bool is_left = items > 0;
        if (is_left) pool.start_section(items, schedule);
        items = 0;
        return is_left;
      }
    } section(*this, run_one, items, schedule);
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
