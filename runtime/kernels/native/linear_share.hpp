// A linear in shares: what one thread takes of it at a time. The bits of a result do not depend on them.
#pragma once

#include <algorithm>

#include "model.hpp"
#include "workspace.hpp"

namespace gristmill {

constexpr int kChunkTokens = 128;      // tokens of one kernel call
constexpr int kTileShareTokens = 512;  // tokens of one share on matrix tiles, at most

// The panels of `tokens` tokens, without memory. Integer weights read int8 with `integer_activations`.
Activations describe(const KernelTable& kernels, bool integer_activations, const Weight& weight, int tokens);

int value_bytes(ActivationForm form);

// How `linear` over `x` is divided for so many threads.
Share share_of(const KernelTable& kernels, const Linear& linear, const Activations& x, int threads);

// Shares of a linear of so many tiles.
inline int count_shares(const Share& share, int tiles, const Activations& x) {
  return (tiles + share.tiles - 1) / share.tiles * ((x.panels + share.panels - 1) / share.panels);
}

// Share number `item` of `linear`; store(tile, out, first token, tokens) takes each tile's output away.
template <typename Store>
void multiply_share(const KernelTable& kernels, const Linear& linear, const Activations& x,
                    const Share& share, int item, const ThreadSpace& space, Store&& store) {
  const auto kernel = x.form == ActivationForm::int8 ? kernels.linear_int8 : kernels.linear_float;
  const int tiles = linear.tiles(), parts = (tiles + share.tiles - 1) / share.tiles;
  const int tile = item % parts * share.tiles, some = std::min(share.tiles, tiles - tile);
  const int start = item / parts * share.panels, end = std::min(start + share.panels, x.panels);
  float* out = space.tile.as<float>();
  for (int panel = start; panel < end; panel += share.call_panels) {
    const int count = std::min(share.call_panels, end - panel), first = panel * x.panel;
    if (share.on_matrix_tiles) {
      const TileReuse reuse = end - start <= share.call_panels ? TileReuse::none
                              : panel == start                 ? TileReuse::first
                                                               : TileReuse::again;
      kernels.linear_tiles(linear.weight, tile, some, x, panel, count, reuse, space.scratch.as<void>(), out);
    } else {
      kernel(linear.weight, tile, x, panel, count, out);
    }
    const int padded = (count - 1) * x.panel + (panel + count == x.panels ? x.last : x.panel);
    for (int i = 0; i < some; ++i) {
      store(tile + i, out + static_cast<int64_t>(i) * padded * kTileRows, first,
            std::min(padded, x.tokens - first));
    }
  }
}

}  // namespace gristmill
