#include "measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "aligned.hpp"

namespace gristmill {
namespace {

constexpr int kRepeats = 5;  // the best counts: a neighbour can only take away
constexpr int64_t kRounds = 200'000;

// Seconds that all threads need for work(thread), started together. Throws std::system_error, and leaves no
// thread, if the system refuses one.
double timed(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> refused{false};
  const auto run = [&](int thread) {
    ++ready;
    while (ready < threads) {
      if (refused) return;
      std::this_thread::yield();
    }
    work(thread);
  };
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
  } catch (...) {
    refused = true;
    for (std::thread& other : others) other.join();
    throw;
  }
  const auto start = std::chrono::steady_clock::now();
  run(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Adding 64-bit words keeps every load alive and is cheaper than any memory.
uint64_t read_all(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    __builtin_prefetch(words + i + 1024);
    __builtin_prefetch(words + i + 1032);
    __builtin_prefetch(words + i + 1040);
    __builtin_prefetch(words + i + 1048);
    __builtin_prefetch(words + i + 1056);
    __builtin_prefetch(words + i + 1064);
    __builtin_prefetch(words + i + 1072);
    __builtin_prefetch(words + i + 1080);
    for (int j = 0; j < 64; ++j) sums[j % 8] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double measure_bandwidth(int threads, int64_t bytes) {
  const Buffer memory(bytes);
  std::memset(memory.as<void>(), 1, bytes);
  const int64_t words = bytes / 8 / threads;
  std::vector<uint64_t> sums(threads);
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const double seconds =
        timed(threads, [&](int thread) { sums[thread] += read_all(memory.as<uint64_t>() + thread * words, words); });
    best = std::max(best, static_cast<double>(words) * 8 * threads / seconds);
  }
  return best;
}

double measure_compute(const KernelTable& kernels, ActivationForm form, int threads) {
  std::vector<int64_t> done(threads);
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const double seconds =
        timed(threads, [&](int thread) { done[thread] = kernels.multiply_adds(form, kRounds); });
    int64_t total = 0;
    for (int64_t each : done) total += each;
    best = std::max(best, static_cast<double>(total) / seconds);
  }
  return best;
}

}  // namespace gristmill
