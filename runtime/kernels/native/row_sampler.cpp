// Choosing the tokens of a step's rows: threads claim them one by one.
#include "row_sampler.hpp"

#include <xmmintrin.h>

#include <algorithm>
#include <exception>

#include "thread_pool.hpp"

namespace gristmill {
namespace {

// The pool flushes subnormals to zero, and a row sampled without it must not differ.
class SubnormalsKept {
 public:
  SubnormalsKept() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kFlushSubnormals); }
  ~SubnormalsKept() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushSubnormals = 0x8040;  // FTZ and DAZ of MXCSR
  unsigned before_;
};

// One completion's rows follow each other, so threads can only share rows of different completions.
bool are_distinct(std::vector<SamplerState*> states) {
  std::sort(states.begin(), states.end());
  return std::adjacent_find(states.begin(), states.end()) == states.end();
}

}  // namespace

RowSampler::RowSampler(ThreadPool* pool) : pool_(pool), scratch_(pool == nullptr ? 1 : pool->size()) {}

std::vector<Choice> RowSampler::sample(const float* logits, const float* tile_maxima, int64_t vocab_size,
                                       const std::vector<int64_t>& rows,
                                       const std::vector<SamplerState*>& states) {
  const int64_t tiles = vocabulary_tiles(vocab_size);
  std::vector<Choice> choices(rows.size());
  std::vector<std::exception_ptr> errors(rows.size());  // a pool's thread must not throw
  const auto sample_one = [&](size_t i, SamplingScratch& scratch) {
    const SubnormalsKept kept;
    try {
      const float* maxima = tile_maxima == nullptr ? nullptr : tile_maxima + rows[i] * tiles;
      choices[i] = sample_row(logits + rows[i] * vocab_size, maxima, *states[i], scratch);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  if (pool_ == nullptr || rows.size() < 2 || !are_distinct(states)) {
    for (size_t i = 0; i < rows.size(); ++i) sample_one(i, scratch_[0]);
  } else {
    pool_->run([&](int thread) {
      const int count = static_cast<int>(rows.size());
      for (int i; (i = pool_->claim(thread, count)) >= 0;) sample_one(i, scratch_[thread]);
      pool_->finish(thread);
    });
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return choices;
}

}  // namespace gristmill
