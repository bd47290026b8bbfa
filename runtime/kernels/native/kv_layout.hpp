// The bytes of a cache unit.
#pragma once

#include "kernel_table.hpp"

namespace gristmill {

// Where keys, values and scales stand in a unit. The scales are of fp8 only: stored = number / scale.
// Throws std::invalid_argument for a head_dim outside 1 .. kMostHeadDim or a scale that is not positive.
KvLayout make_kv_layout(KvType type, int head_dim, float key_scale, float value_scale);

// Whether keys go into the cache, and queries to it, through a Hadamard matrix: their products stay what they are.
bool rotates_keys(KvType type);

}  // namespace gristmill
