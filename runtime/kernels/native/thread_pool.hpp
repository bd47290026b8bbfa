// Persistent threads that run one function together, with barriers and dynamically claimed items.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace gristmill {

// Waiters spin for about 50 microseconds, then sleep in a futex: an idle engine uses no processor
// time, and a neighbour that takes a core delays a barrier but doesn't burn the others.
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void open();                  // moves the value on and wakes the waiters
  void wait(uint32_t passed);   // returns when the value is no longer `passed`

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

class ThreadPool {
 public:
  // The calling thread of run() is thread 0; `threads - 1` are started. With `cores`, thread i > 0
  // is pinned to cores[i]. Throws std::system_error if the system refuses a thread.
  ThreadPool(int threads, const std::vector<int>& cores);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs body(thread) on all threads and returns when all have finished. One caller at a time. The
  // body must not throw. Subnormals are flushed to zero meanwhile.
  void run(const std::function<void(int)>& body);

  // Called by every thread inside run(): waits for all of them, and starts a new round of claims.
  void barrier(int thread);

  // The next of this round's `items` for this thread, or -1. Each thread owns a contiguous share,
  // walks it front to back, then takes from the others'. Every thread must ask until it gets -1.
  int claim(int thread, int items);

 private:
  struct alignas(128) Counter {
    std::atomic<int> taken{0};
  };
  struct alignas(128) Round {
    int number = 0;
  };

  void work(int thread);

  int threads_;
  std::unique_ptr<Counter[]> counters_;  // two rounds of one counter a thread
  std::unique_ptr<Round[]> rounds_;      // the round that each thread is in
  std::atomic<int> arrived_{0};
  Gate barrier_gate_;
  Gate start_gate_;
  const std::function<void(int)>* body_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// Threads worth starting: what the affinity mask and the control group's quota leave.
int effective_threads();

}  // namespace gristmill
