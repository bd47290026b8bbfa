#include "kv_cache.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

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
    const size_t heads = static_cast<size_t>(attention.num_kv_heads);
    if (layer.key_scales.size() != heads || layer.value_scales.size() != heads) {
      throw std::invalid_argument("scales of the key and value cache: expected one for each kv head");
    }
    LayerCache cache{{}, bytes_};
    for (size_t h = 0; h < heads; ++h) {
      cache.layouts.push_back(make_kv_layout(type, attention.head_dim, layer.key_scales[h], layer.value_scales[h]));
    }
    bytes_ += byte_count({attention.num_kv_heads, cache.layouts[0].unit_bytes});
    layers_.push_back(std::move(cache));
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
