// The paged cache of all layers: units of 16 tokens and one kv head.
//
// A layer and kv head has kExtentUnits consecutive units side by side, so that attention reads long pieces of
// memory: in pieces of 2 KB it gets little more than half of what a core can read. All layers and heads
// of these units lie together: with one region a layer, steps that write new blocks touch as many large pages
// for the first time as there are layers, and took 200 ms longer on a virtual machine.
#pragma once

#include <algorithm>
#include <cstdint>
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
    const int64_t first = unit / kExtentUnits * kExtentUnits;
    const int64_t units = std::min(kExtentUnits, num_units_ - first);  // the last extent may be a short one
    return memory_.as<uint8_t>() + first * bytes_ + cache.offset * units +
           (kv_head * units + unit - first) * cache.layouts[0].unit_bytes;
  }

  // All layers of block `source` over block `target`. Throws std::invalid_argument for a block outside the cache.
  void copy_block(int source, int target);

 private:
  static constexpr int64_t kExtentUnits = 16;
  struct LayerCache {
    std::vector<KvLayout> layouts;
    int64_t offset;  // in the bytes of all layers
  };
  void copy_unit(int64_t source, int64_t target);

  int num_blocks_, block_size_;
  int64_t num_units_;
  int64_t bytes_ = 0;  // of all layers and heads for 16 tokens
  std::vector<LayerCache> layers_;
  Buffer memory_;
};

}  // namespace gristmill
