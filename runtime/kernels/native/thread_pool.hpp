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

// Work is a series of rounds. A round has a number of items; threads claim them one by one, and the
// round is over when all items are done, not when all threads have arrived: a thread that a neighbour
// has pushed off its core holds up the others only while it is inside an item.
class ThreadPool {
 public:
  // The calling thread of run() is thread 0; `threads - 1` are started. With `cores`, thread i > 0
  // is pinned to cores[i]. Throws std::system_error, and leaves no thread, if the system refuses one.
  ThreadPool(int threads, const std::vector<int>& cores);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs body(thread) on the calling thread and on those that come in time, and returns when the
  // calling one has finished and no other is inside. One caller at a time. All threads must go
  // through the same rounds. The body must not catch what it does not know, and must not throw on
  // thread 0. Subnormals are flushed to zero meanwhile.
  void run(const std::function<void(int)>& body);

  // The next of this round's `items` for this thread, or -1. Each thread owns a contiguous share,
  // walks it front to back, then takes from the others'.
  int claim(int thread, int items);

  // Waits until all items of this round are done, and goes on to the next. To be called after claim()
  // gave -1.
  void finish(int thread);

  // Whether this round is over already: what a late thread would prepare for it is not needed.
  bool over(int thread) const;

 private:
  // A round's number and a count in one word. A word of an earlier round means a count of 0.
  using Word = uint64_t;
  enum class Status : int { outside, invited, working, waiting };
  struct alignas(128) Shared {
    std::atomic<Word> word{0};
  };
  struct alignas(128) Own {
    std::atomic<Status> status{Status::outside};
    uint64_t round = 0;
    int items = 0;  // of this round, as claim() was told
    int done = 0;   // by this thread
  };

  void work(int thread);
  void stop();
  void close();
  bool complete(const Own& own) const;

  int threads_;
  std::unique_ptr<Shared[]> taken_;  // of each thread's share
  Shared done_;
  std::unique_ptr<Own[]> own_;
  Gate round_gate_;
  Gate start_gate_;
  const std::function<void(int)>* body_ = nullptr;
  uint64_t start_round_ = 0;  // of the current run
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// Threads worth starting: what the affinity mask and the control group's quota leave.
int effective_threads();

}  // namespace gristmill
