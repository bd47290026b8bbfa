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
    layers_.push_back({layout, bytes_});
    bytes_ += byte_count({attention.num_kv_heads, layout.unit_bytes});
  }
  memory_.reserve(byte_count({units, bytes_}));
}

void KvCache::copy_block(int source, int target) {
  for (const int block : {source, target}) {
    if (block < 0 || block >= num_blocks_) {
      throw std::invalid_argument("block " + std::to_string(block) + " of a cache of " + std::to_string(num_blocks_));
    }
  }
  if (source == target) return;
  const int64_t bytes = block_size_ / kUnitTokens * bytes_;
  std::memcpy(memory_.as<uint8_t>() + target * bytes, memory_.as<uint8_t>() + source * bytes, bytes);
}

}  // namespace gristmill
