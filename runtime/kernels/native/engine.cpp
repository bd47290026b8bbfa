#include "engine.hpp"

#include <stdexcept>

namespace gristmill {

Engine::Engine(Model model, const EngineOptions& options)
    : model_(std::move(model)),
      kernels_(select_table(options.instruction_set)),
      pool_(options.threads > 0 ? options.threads : effective_threads(), options.cores),
      sampler_(&pool_),
      cache_(model_, options.kv_type, options.num_blocks, options.block_size),
      step_(kernels_, model_, cache_, pool_, options.step) {}

const float* Engine::execute(const StepInput& input) {
  lay_out(input, model_, cache_.num_blocks(), cache_.block_size(), batch_);
  logits_.reserve(byte_count({input.rows, model_.vocab_size, 4}));
  tile_maxima_.reserve(byte_count({input.rows, vocabulary_tiles(model_.vocab_size), 4}));
  const int layer = step_.run(batch_, logits_.as<float>(), tile_maxima_.as<float>());
  if (layer >= 0) {
    throw std::runtime_error(layer == static_cast<int>(model_.layers.size())
                                 ? "the logits are not finite"
                                 : "the output of layer " + std::to_string(layer) + " is not finite");
  }
  return logits_.as<float>();
}

}  // namespace gristmill
