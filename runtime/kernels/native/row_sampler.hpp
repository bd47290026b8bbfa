// Choosing the tokens of a step's rows, by one thread or by those of an engine.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling.hpp"

namespace gristmill {

class ThreadPool;

// Keeps its threads' memory from call to call. The choices do not depend on the number of threads.
class RowSampler {
 public:
  // Without a pool the calling thread does it all; a pool must outlive the sampler.
  explicit RowSampler(ThreadPool* pool = nullptr);

  // A choice for each of `rows` of logits [row][vocab_size], recorded in the row's state. The pool, if any,
  // must be at rest. `tile_maxima` [row][vocabulary_tiles(vocab_size)] are those of the logits, or null.
  std::vector<Choice> sample(const float* logits, const float* tile_maxima, int64_t vocab_size,
                             const std::vector<int64_t>& rows, const std::vector<SamplerState*>& states);

 private:
  ThreadPool* pool_;
  std::vector<SamplingScratch> scratch_;  // one a thread
};

}  // namespace gristmill
