// A model as the step reads it: pointers into the mapped weights, and the settings of each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernel_table.hpp"

namespace gristmill {

struct Linear {
  Weight weight;
  int32_t out_features;             // real output columns of all parts together
  std::vector<TileOutput> outputs;  // one a tile
  const float* bias;                // in padded row order, or null

  int tiles() const { return weight.rows / kTileRows; }
};

struct Norm {
  const float* weight;  // null: no norm
  int32_t size;
  float eps;
};

constexpr Norm kNoNorm{nullptr, 0, 0};

struct Rope {
  std::vector<float> inv_freq;
  float attention_factor;
};

struct Attention {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  float scale;
  float softcap;    // 0: none
  int32_t window;   // 0: none
  int32_t rope;     // index into Model::ropes, -1: none
  Norm q_norm, k_norm;
};

// A gated MLP of a mixture: the tiles of gate_up hold 16 gate rows, then the up rows beside them.
struct Expert {
  Linear gate_up, down;
  Activation activation;
  int32_t intermediate_size;
};

// The router's logits are those of the experts that it chooses from, then with `shared_gate` that of
// the shared expert, which comes last and sees every token.
struct Mixture {
  Linear router;  // float32
  std::vector<Expert> experts;
  int32_t top_k;
  bool normalize_top_k;
  bool shared;
  bool shared_gate;

  int routed() const { return static_cast<int>(experts.size()) - shared; }
  int passes() const { return top_k + shared; }  // experts that one token goes through
};

struct Layer {
  Norm input_norm, mlp_norm;
  Attention attention;
  Linear qkv, o, gate_up, down;     // the last two without a mixture only, as what follows
  Activation activation;
  int32_t intermediate_size;
  std::optional<Mixture> mixture;
  std::vector<float> key_scales, value_scales;  // of an fp8 cache, one a kv head
};

struct Model {
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t max_positions;
  WeightKind embedding_kind;  // bfloat16 or float32
  const uint8_t* embedding;
  Norm final_norm;
  Linear head;
  std::vector<Rope> ropes;
  std::vector<Layer> layers;
};

}  // namespace gristmill
