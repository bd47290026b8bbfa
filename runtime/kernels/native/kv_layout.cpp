#include "kv_layout.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace gristmill {
namespace {

int bits_per_key(KvType type) {
  switch (type) {
    case KvType::float32: return 32;
    case KvType::bfloat16:
    case KvType::float16: return 16;
    case KvType::fp8:
    case KvType::int8:
    case KvType::int4: return 8;
  }
  throw std::invalid_argument("type of the key and value cache is unknown");
}

int bits_per_value(KvType type) { return type == KvType::int4 ? 4 : bits_per_key(type); }

bool usable_scale(float scale) { return std::isfinite(scale) && scale > 0.0f; }

}  // namespace

KvLayout make_kv_layout(KvType type, int head_dim, float key_scale, float value_scale) {
  if (head_dim < 1 || head_dim > kMostHeadDim)
    throw std::invalid_argument("head dimension: found " + std::to_string(head_dim) + ", expected 1 to " +
                                std::to_string(kMostHeadDim));
  if (!usable_scale(key_scale) || !usable_scale(value_scale))
    throw std::invalid_argument("scales of the key and value cache: expected positive, finite numbers");
  KvLayout layout{};
  layout.type = type;
  layout.head_dim = head_dim;
  layout.padded_dim = (head_dim + 15) / 16 * 16;
  const int numbers = layout.padded_dim * kUnitTokens;
  const int keys = numbers * bits_per_key(type) / 8, values = numbers * bits_per_value(type) / 8;
  const bool token_scales = type == KvType::int8 || type == KvType::int4;
  const int scales = token_scales ? kUnitTokens * static_cast<int>(sizeof(float)) : 0;
  layout.key_scales = keys;
  layout.values = keys + scales;
  layout.value_scales = layout.values + values;
  layout.unit_bytes = layout.value_scales + scales;
  layout.key_scale = key_scale;
  layout.value_scale = value_scale;
  return layout;
}

bool rotates_keys(KvType type) { return type == KvType::fp8 || type == KvType::int8 || type == KvType::int4; }

}  // namespace gristmill
