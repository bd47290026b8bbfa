#include "linear_share.hpp"

#include <algorithm>

namespace gristmill {
namespace {

constexpr int64_t kBlockBytes = 384 << 10;  // input that stays in the second level cache
constexpr int64_t kTileBlockBytes = 1 << 20;
constexpr int kLeastOwnTokens = 128;  // for which a thread decodes all weights for itself

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

// Several tiles share the tokens that they read, unless threads would then wait for each other. Of many tokens
// each thread takes its own first, the same ones in every linear: it finds in its cache what it has written.
Share tile_share(const Activations& x, int tiles, int threads) {
  const int64_t most = std::max<int64_t>(kTileBlockBytes / (x.columns * 2), kChunkTokens);
  const int tokens = x.panels * x.panel, limit = static_cast<int>(std::min<int64_t>(most, kMostTileTokens));
  int blocks = (tokens + limit - 1) / limit;
  if (tokens >= threads * kLeastOwnTokens) blocks = round_up(blocks, threads);
  const int panels = round_up((x.panels + blocks - 1) / blocks, 2);
  int best = 1, least = tiles;
  for (int some = 1; some <= kMostLinearTiles; ++some) {
    const int shares = (tiles + some - 1) / some * blocks;
    const int longest = (shares + threads - 1) / threads * some;  // tiles of the busiest thread
    if (longest <= least) best = some, least = longest;
  }
  return {best, panels, panels, true};
}

// Where there are no matrix tiles: a tile's output [token][32] of `tokens` tokens.
void finish_tile(const KernelTable& kernels, const Sink& sink, int tile, const float* out, int first, int tokens) {
  const float* bias = sink.bias == nullptr ? nullptr : sink.bias + tile * kTileRows;
  float* y = sink.y + first * sink.stride;
  if (sink.finish == Finish::gate) {
    const int channel = tile * (kTileRows / 2);
    kernels.gate_tile(sink.activation, out, tokens, std::min(kTileRows / 2, sink.channels - channel), bias,
                      y + channel, sink.stride);
  } else {
    const TileOutput& output = sink.outputs[tile];
    kernels.store_tile(out, tokens, output.count, bias, sink.finish == Finish::add, y + output.column, sink.stride);
  }
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

bool on_matrix_tiles(const KernelTable& kernels, const Weight& weight, const Activations& x) {
  return kernels.linear_tiles != nullptr && x.form == ActivationForm::bfloat16 && weight.kind != WeightKind::float32;
}

Share share_of(const KernelTable& kernels, const Linear& linear, const Activations& x, int threads) {
  return on_matrix_tiles(kernels, linear.weight, x) ? tile_share(x, linear.tiles(), threads) : vector_share(x);
}

int count_shares(const Share& share, int tiles, const Activations& x) {
  return (tiles + share.tiles - 1) / share.tiles * ((x.panels + share.panels - 1) / share.panels);
}

ShareRange range_of(const Share& share, int tiles, const Activations& x, int item) {
  const int parts = (tiles + share.tiles - 1) / share.tiles;
  const int tile = item % parts * share.tiles, start = item / parts * share.panels;
  return {tile, std::min(share.tiles, tiles - tile), start, std::min(start + share.panels, x.panels)};
}

void multiply_share(const KernelTable& kernels, const Linear& linear, const Activations& x, const Share& share,
                    int item, const ThreadSpace& space, const Sink& sink) {
  const ShareRange range = range_of(share, linear.tiles(), x, item);
  const int panels = range.end - range.start;
  if (share.on_matrix_tiles) {
    kernels.linear_tiles(linear.weight, range.tile, range.tiles, x, range.start, panels, space.scratch.as<void>(), sink);
    return;
  }
  const auto kernel = x.form == ActivationForm::int8 ? kernels.linear_int8 : kernels.linear_float;
  float* out = space.tile.as<float>();
  for (int panel = range.start; panel < range.end; panel += share.call_panels) {
    const int count = std::min(share.call_panels, range.end - panel), first = panel * x.panel;
    kernel(linear.weight, range.tile, x, panel, count, out);
    finish_tile(kernels, sink, range.tile, out, first, std::min(count * x.panel, x.tokens - first));
  }
}

Sink row_sink(const Linear& linear, bool add, float* y, int64_t stride) {
  Sink sink{};
  sink.finish = add ? Finish::add : Finish::write;
  sink.bias = linear.bias;
  sink.outputs = linear.outputs.data();
  sink.y = y;
  sink.stride = stride;
  return sink;
}

}  // namespace gristmill
