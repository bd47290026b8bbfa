// The paged cache of all layers: units of 16 tokens and one kv head.
#pragma once

#include <vector>

#include "aligned.hpp"
#include "kv_layout.hpp"
#include "model.hpp"

namespace gristmill {

class KvCache {
 public:
  // Throws std::invalid_argument for sizes that can't be, NoMemory for those that can't be had.
  KvCache(const Model& model, KvType type, int num_blocks, int block_size);

  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  const KvLayout& layout(int layer) const { return layers_[layer].layout; }
  uint8_t* unit(int layer, int64_t unit, int kv_head) const {
    const LayerCache& cache = layers_[layer];
    return cache.memory.as<uint8_t>() + (unit * cache.kv_heads + kv_head) * cache.layout.unit_bytes;
  }

  // All layers of block `source` over block `target`. Throws std::invalid_argument for a block outside the cache.
  void copy_block(int source, int target);

 private:
  struct LayerCache {
    KvLayout layout;
    int32_t kv_heads;
    Buffer memory;
  };
  int num_blocks_, block_size_;
  std::vector<LayerCache> layers_;
};

}  // namespace gristmill
