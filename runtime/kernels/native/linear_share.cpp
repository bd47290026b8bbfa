#include "linear_share.hpp"

namespace gristmill {
namespace {

constexpr int kTileCallTokens = 64;         // of a call on matrix tiles, where calls share decoded weights
constexpr int64_t kBlockBytes = 384 << 10;  // input that stays in the second level cache
constexpr int64_t kTileBlockBytes = 1 << 20;

bool is_integer(WeightKind kind) { return kind == WeightKind::int4 || kind == WeightKind::int8; }

int last_width(int rest, int panel) {
  if (rest == 0) return panel;
  int width = 1;
  while (width < rest) width *= 2;
  return width;
}

int round_up(int number, int to) { return (number + to - 1) / to * to; }

Share vector_share(const Activations& x) {
  const int64_t panel_bytes = static_cast<int64_t>(x.panel) * x.columns * value_bytes(x.form);
  const int call = kChunkTokens / x.panel;
  return {1, std::max<int>(1, static_cast<int>(kBlockBytes / panel_bytes / call)) * call, call, false};
}

// Several tiles share the tokens that they read, unless threads would then wait for each other.
Share tile_share(const Activations& x, int tiles, int threads) {
  const int64_t most = std::max<int64_t>(kTileBlockBytes / (x.columns * 2), kChunkTokens);
  const int tokens = x.panels * x.panel, limit = static_cast<int>(std::min<int64_t>(most, kTileShareTokens));
  const int blocks = (tokens + limit - 1) / limit;
  const int panels = round_up((x.panels + blocks - 1) / blocks, 2);
  int best = 1, least = tiles;
  for (int some = 1; some <= kMostLinearTiles; ++some) {
    const int shares = (tiles + some - 1) / some * blocks;
    const int longest = (shares + threads - 1) / threads * some;  // tiles of the busiest thread
    if (longest <= least) best = some, least = longest;
  }
  const bool sharing = static_cast<int64_t>(best) * kTileRows * x.columns * 2 <= kLinearScratchBytes;
  return {best, panels, sharing ? std::min(panels, kTileCallTokens / x.panel) : panels, true};
}

}  // namespace

Activations describe(const KernelTable& kernels, bool integer_activations, const Weight& weight, int tokens) {
  Activations x{};
  x.form = weight.kind == WeightKind::float32               ? ActivationForm::float32
           : is_integer(weight.kind) && integer_activations ? ActivationForm::int8
                                                            : ActivationForm::bfloat16;
  x.tokens = tokens;
  x.columns = weight.columns;
  x.panel = kernels.panel;
  x.panels = (tokens + x.panel - 1) / x.panel;
  x.last = last_width(tokens % x.panel, x.panel);
  return x;
}

int value_bytes(ActivationForm form) {
  return form == ActivationForm::int8 ? 1 : form == ActivationForm::bfloat16 ? 2 : 4;
}

Share share_of(const KernelTable& kernels, const Linear& linear, const Activations& x, int threads) {
  const bool on_matrix_tiles = kernels.linear_tiles != nullptr && x.form == ActivationForm::bfloat16 &&
                               linear.weight.kind != WeightKind::float32;
  return on_matrix_tiles ? tile_share(x, linear.tiles(), threads) : vector_share(x);
}

}  // namespace gristmill
