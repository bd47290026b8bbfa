// A linear in shares: what one thread takes of it at a time. The bits of a result do not depend on them.
#pragma once

#include "model.hpp"
#include "workspace.hpp"

namespace gristmill {

constexpr int kChunkTokens = 128;  // tokens of one call of a kernel without matrix tiles

// The panels of `tokens` tokens, without memory. Integer weights read int8 with `integer_activations`.
Activations describe(const KernelTable& kernels, bool integer_activations, const Weight& weight, int tokens);

int value_bytes(ActivationForm form);

// Whether a linear of that weight over `x` runs on matrix tiles.
bool on_matrix_tiles(const KernelTable& kernels, const Weight& weight, const Activations& x);

// How `linear` over `x` is divided for so many threads.
Share share_of(const KernelTable& kernels, const Linear& linear, const Activations& x, int threads);

// Shares of a linear of so many tiles.
int count_shares(const Share& share, int tiles, const Activations& x);

// The tiles and panels of one share: `tiles` from `tile` on, and panels `start` .. `end`.
struct ShareRange {
  int tile, tiles;
  int start, end;
};
ShareRange range_of(const Share& share, int tiles, const Activations& x, int item);

// Share number `item` of `linear`, into the sink.
void multiply_share(const KernelTable& kernels, const Linear& linear, const Activations& x, const Share& share,
                    int item, const ThreadSpace& space, const Sink& sink);

// Rows of `linear`, written to y or added to it.
Sink row_sink(const Linear& linear, bool add, float* y, int64_t stride);

}  // namespace gristmill
