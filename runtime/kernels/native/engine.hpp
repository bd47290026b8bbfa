// The native engine: a model, its cache, its threads, and one call a step.
#pragma once

#include <memory>
#include <string>

#include "dispatch.hpp"
#include "row_sampler.hpp"
#include "step.hpp"

namespace gristmill {

struct EngineOptions {
  std::string instruction_set;  // empty: the fastest
  int threads;                  // 0: as many as the machine grants
  std::vector<int> cores;       // pin thread i to cores[i]; empty: no pinning
  KvType kv_type;
  int num_blocks;
  int block_size;
  StepOptions step;
};

class Engine {
 public:
  // The model's pointers must stay valid. Throws std::invalid_argument for options that can't be met,
  // std::system_error and NoMemory for threads and memory that the system refuses.
  Engine(Model model, const EngineOptions& options);

  const KernelTable& kernels() const { return kernels_; }
  const Model& model() const { return model_; }
  int threads() const { return pool_.size(); }
  const Step& step() const { return step_; }

  // Logits of the asked rows, valid until the next call. Throws std::invalid_argument for an input
  // outside the model or the cache, before anything is written; std::runtime_error, with debug_nan,
  // for values that are not finite; NoMemory for a batch that does not fit.
  const float* execute(const StepInput& input);

  // The maxima [row][tile] of the last step's logits, if these are they; null for others.
  const float* tile_maxima_of(const float* logits) const {
    return logits == logits_.as<float>() ? tile_maxima_.as<float>() : nullptr;
  }

  // On the threads of the steps; not to be used while a step runs.
  RowSampler& sampler() { return sampler_; }

  // Between steps: see KvCache.
  void copy_block(int source, int target) { cache_.copy_block(source, target); }

  const KvCache& cache() const { return cache_; }

 private:
  Model model_;
  const KernelTable& kernels_;
  ThreadPool pool_;
  RowSampler sampler_;
  KvCache cache_;
  Step step_;
  Batch batch_;
  Buffer logits_;
  Buffer tile_maxima_;  // of the logits, see tile_maxima()
};

}  // namespace gristmill
