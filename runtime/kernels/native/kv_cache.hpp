// The paged cache of all layers: units of 16 tokens and one kv head.
//
// What all layers keep of the same 16 tokens lies together. So a step that writes new blocks touches a
// few large pages for the first time, and not one for each layer: with a region a layer, such steps took
// 200 ms longer on a virtual machine.
#pragma once

#include <vector>

#include "aligned.hpp"
#include "kv_layout.hpp"
#include "model.hpp"

namespace gristmill {

class KvCache {
 public:
  // Throws std::invalid_argument for sizes and scales that can't be, NoMemory for those that can't be had.
  KvCache(const Model& model, KvType type, int num_blocks, int block_size);

  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  // Equal for all kv heads of a layer but for the scales of fp8.
  const KvLayout& layout(int layer, int kv_head) const { return layers_[layer].layouts[kv_head]; }
  uint8_t* unit(int layer, int64_t unit, int kv_head) const {
    const LayerCache& cache = layers_[layer];
    return memory_.as<uint8_t>() + unit * bytes_ + cache.offset + kv_head * cache.layouts[0].unit_bytes;
  }

  // All layers of block `source` over block `target`. Throws std::invalid_argument for a block outside the cache.
  void copy_block(int source, int target);

 private:
  struct LayerCache {
    std::vector<KvLayout> layouts;
    int64_t offset;
  };
  int num_blocks_, block_size_;
  int64_t bytes_ = 0;  // of all layers and heads for 16 tokens
  std::vector<LayerCache> layers_;
  Buffer memory_;
};

}  // namespace gristmill
