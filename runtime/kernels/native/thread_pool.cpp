#include "thread_pool.hpp"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>

namespace gristmill {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr unsigned kFlushSubnormals = 0x8040;  // FTZ and DAZ of MXCSR

class SubnormalsFlushed {
 public:
  SubnormalsFlushed() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushSubnormals); }
  ~SubnormalsFlushed() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

void pin(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

// Processors that the control group's quota grants, 0 if there is none or it can't be read.
double quota_processors() {
  double quota = 0, period = 0;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {  // version 2: "max 100000" or two numbers
    const int read = std::fscanf(file, "%lf %lf", &quota, &period);
    std::fclose(file);
    return read == 2 && period > 0 ? quota / period : 0;
  }
  for (auto [name, value] : {std::pair{"cpu.cfs_quota_us", &quota}, std::pair{"cpu.cfs_period_us", &period}}) {
    char path[64];
    std::snprintf(path, sizeof path, "/sys/fs/cgroup/cpu/%s", name);
    FILE* file = std::fopen(path, "r");
    if (file == nullptr) return 0;
    const int read = std::fscanf(file, "%lf", value);
    std::fclose(file);
    if (read != 1) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

void Gate::open() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Gate::wait(uint32_t passed) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (value() != passed) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == passed) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, passed, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& cores)
    : threads_(threads), counters_(new Counter[2 * threads]), rounds_(new Round[threads]) {
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i] { work(i); });
    if (i < static_cast<int>(cores.size())) pin(workers_.back(), cores[i]);
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  start_gate_.open();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  const SubnormalsFlushed flushed;
  uint32_t passed = 0;
  while (true) {
    start_gate_.wait(passed);
    ++passed;
    if (stopping_) return;
    (*body_)(thread);
    barrier(thread);
  }
}

void ThreadPool::run(const std::function<void(int)>& body) {
  const SubnormalsFlushed flushed;
  body_ = &body;
  start_gate_.open();
  body(0);
  barrier(0);
}

void ThreadPool::barrier(int thread) {
  const int next = ++rounds_[thread].number;
  if (threads_ == 1) {
    counters_[(next + 1) % 2].taken.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t passed = barrier_gate_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) {
    barrier_gate_.wait(passed);
    return;
  }
  // Everyone has left the round that ends here: its counters serve the round after next.
  for (int i = 0; i < threads_; ++i) {
    counters_[((next + 1) % 2) * threads_ + i].taken.store(0, std::memory_order_relaxed);
  }
  arrived_.store(0, std::memory_order_relaxed);
  barrier_gate_.open();
}

int ThreadPool::claim(int thread, int items) {
  Counter* counters = counters_.get() + (rounds_[thread].number % 2) * threads_;
  for (int i = 0; i < threads_; ++i) {
    const int owner = (thread + i) % threads_;
    const int64_t begin = static_cast<int64_t>(items) * owner / threads_;
    const int64_t end = static_cast<int64_t>(items) * (owner + 1) / threads_;
    if (counters[owner].taken.load(std::memory_order_relaxed) >= end - begin) continue;
    const int taken = counters[owner].taken.fetch_add(1, std::memory_order_relaxed);
    if (begin + taken < end) return static_cast<int>(begin + taken);
  }
  return -1;
}

int effective_threads() {
  cpu_set_t set;
  int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                               : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = quota_processors();
  if (quota > 0) processors = std::min(processors, std::max(1, static_cast<int>(std::floor(quota))));
  return std::max(processors, 1);
}

}  // namespace gristmill
