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

struct RunIsOver {};

constexpr int kCountBits = 20;

uint64_t round_of(uint64_t word) { return word >> kCountBits; }
int count_of(uint64_t word) { return static_cast<int>(word & ((1u << kCountBits) - 1)); }
uint64_t word_of(uint64_t round, int64_t count) { return round << kCountBits | static_cast<uint64_t>(count); }

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
    : threads_(threads), taken_(new Shared[threads]), own_(new Own[threads]) {
  own_[0].round = 1;  // words start in round 0
  workers_.reserve(threads);
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this, i] { work(i); });
      if (i < static_cast<int>(cores.size())) pin(workers_.back(), cores[i]);
    }
  } catch (...) {  // the destructor does not run
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  start_gate_.open();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  const SubnormalsFlushed flushed;
  Own& own = own_[thread];
  while (!stopping_) {
    const uint32_t passed = start_gate_.value();
    Status invited = Status::invited;
    if (own.status.compare_exchange_strong(invited, Status::working)) {
      own.round = start_round_;
      own.items = own.done = 0;
      try {
        (*body_)(thread);
        own.status = Status::outside;
      } catch (const RunIsOver&) {  // thread 0 has finished, and closed the run while this one waited
      }
    } else {
      start_gate_.wait(passed);
    }
  }
}

void ThreadPool::run(const std::function<void(int)>& body) {
  const SubnormalsFlushed flushed;
  body_ = &body;
  start_round_ = own_[0].round;
  for (int i = 1; i < threads_; ++i) own_[i].status = Status::invited;
  start_gate_.open();
  body(0);
  close();
}

// Nobody may be inside when run() returns. Threads that have not come, or wait, are sent away.
void ThreadPool::close() {
  for (int i = 1; i < threads_; ++i) {
    std::atomic<Status>& status = own_[i].status;
    while (true) {
      Status found = status.load();
      if (found == Status::outside) break;
      if (found != Status::working && status.compare_exchange_strong(found, Status::outside)) break;
      _mm_pause();
    }
  }
}

int ThreadPool::claim(int thread, int items) {
  Own& own = own_[thread];
  own.items = items;
  for (int i = 0; i < threads_; ++i) {
    const int owner = (thread + i) % threads_;
    const int64_t begin = static_cast<int64_t>(items) * owner / threads_;
    const int64_t end = static_cast<int64_t>(items) * (owner + 1) / threads_;
    std::atomic<Word>& word = taken_[owner].word;
    Word found = word.load(std::memory_order_acquire);
    while (round_of(found) <= own.round) {
      const int64_t taken = round_of(found) == own.round ? count_of(found) : 0;
      if (begin + taken >= end) break;
      if (word.compare_exchange_weak(found, word_of(own.round, taken + 1), std::memory_order_acq_rel)) {
        ++own.done;
        return static_cast<int>(begin + taken);
      }
    }
  }
  return -1;
}

bool ThreadPool::over(int thread) const {
  return round_of(done_.word.load(std::memory_order_acquire)) > own_[thread].round;
}

bool ThreadPool::complete(const Own& own) const {
  const Word found = done_.word.load(std::memory_order_acquire);
  return own.items == 0 || round_of(found) > own.round ||
         (round_of(found) == own.round && count_of(found) == own.items);
}

void ThreadPool::finish(int thread) {
  Own& own = own_[thread];
  if (own.done > 0) {
    Word found = done_.word.load(std::memory_order_relaxed);
    Word next;
    do {
      next = word_of(own.round, (round_of(found) == own.round ? count_of(found) : 0) + own.done);
    } while (!done_.word.compare_exchange_weak(found, next, std::memory_order_acq_rel));
    if (count_of(next) == own.items) round_gate_.open();
  }
  if (!complete(own)) {
    if (thread > 0) own.status = Status::waiting;
    while (true) {
      const uint32_t passed = round_gate_.value();
      if (complete(own)) break;
      round_gate_.wait(passed);
    }
    Status waiting = Status::waiting;
    if (thread > 0 && !own.status.compare_exchange_strong(waiting, Status::working)) throw RunIsOver();
  }
  ++own.round;
  own.items = own.done = 0;
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
