#include "kv_cache.hpp"

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

}  // namespace gristmill
