#include "kv_cache.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace gristmill {

KvCache::KvCache(const Model& model, KvType type, int num_blocks, int block_size)
    : num_blocks_(num_blocks), block_size_(block_size) {
  if (block_size % kUnitTokens != 0 || block_size <= 0 || num_blocks <= 0) {
    throw std::invalid_argument("the cache needs at least one block of a multiple of 16 tokens");
  }
  const int64_t units = static_cast<int64_t>(num_blocks) * (block_size / kUnitTokens);
  if (units > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("the cache is numbered with 32 bits: too many units of 16 tokens");
  }
  for (const Layer& layer : model.layers) {
    const Attention& attention = layer.attention;
    const KvLayout layout = make_kv_layout(type, attention.head_dim, layer.key_scale, layer.value_scale);
    layers_.push_back({layout, attention.num_kv_heads, Buffer(byte_count({units, attention.num_kv_heads, layout.unit_bytes}))});
  }
}

void KvCache::copy_block(int source, int target) {
  for (const int block : {source, target}) {
    if (block < 0 || block >= num_blocks_) {
      throw std::invalid_argument("block " + std::to_string(block) + " of a cache of " + std::to_string(num_blocks_));
    }
  }
  if (source == target) return;
  const int64_t units = block_size_ / kUnitTokens;
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const int64_t bytes = units * layers_[layer].kv_heads * layers_[layer].layout.unit_bytes;
    std::memcpy(unit(layer, target * units, 0), unit(layer, source * units, 0), bytes);
  }
}

}  // namespace gristmill
