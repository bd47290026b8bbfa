// Passes over a row of logits: its largest values, and its softmax weights.
//
// Every lane does the same IEEE operations in the same order on every machine, so a row's result
// depends on the row alone, to the bit.
#pragma once

#include <cstdint>

namespace gristmill {

constexpr int64_t kVocabularyBlock = 64;  // tokens whose maximum and sum of weights are kept

constexpr int64_t kVocabularyTile = 32;   // tokens whose maximum the head of a model gives

constexpr int64_t vocabulary_blocks(int64_t count) {
  return (count + kVocabularyBlock - 1) / kVocabularyBlock;
}

constexpr int64_t vocabulary_tiles(int64_t count) { return (count + kVocabularyTile - 1) / kVocabularyTile; }

// The largest value of each block. Returns the largest of all, -infinity for none, or NaN if any value is
// not a number; the maxima are then meaningless.
float block_maxima(const float* values, int64_t count, float* maxima);

// For each of some rows the largest of the `count` values of one tile, NaN if any is not a number.
void tile_maxima(const float* values, int64_t rows, int64_t count, int64_t stride, float* maxima,
                 int64_t maxima_stride);

// As block_maxima, from the maxima of a row's `count` tiles.
float merge_maxima(const float* tiles, int64_t count, float* maxima);

// weights[i] = exp((values[i] - best) * scale), and 0 where that is below 2^-126: relative error about
// 1e-7 times (1 + |exponent|). `weights` has room for whole blocks; what is beyond `count` is 0.
// `sums` gets each block's sum, pairwise in float32.
void softmax_weights(const float* values, int64_t count, float best, float scale, float* weights,
                     double* sums);

// The sums of softmax_weights alone.
void softmax_sums(const float* values, int64_t count, float best, float scale, double* sums);

// The sum of each block's weights of at least `least`, pairwise in float32.
void sum_weights(const float* weights, int64_t blocks, float least, double* sums);

// For each of the bounds the sum of the weights of at least that much, in every `stride`-th block.
constexpr int kBoundsPerPass = 3;
void add_weights(const float* weights, int64_t blocks, int64_t stride, const float* bounds, double* totals);

// The same for one bound and all blocks.
double total_weight(const float* weights, int64_t blocks, float least);

// The places, in order, of the values in [least, end); returns how many. `places` has room for `count`.
int64_t find_between(const float* values, int64_t count, float least, float end, int32_t* places);

// Whole numbers in the order of the values, both zeros being one; and back.
void order_keys(const float* values, int64_t count, int32_t* keys);
float value_of_key(int32_t key);

// How many keys are at least `least`.
int64_t count_keys(const int32_t* keys, int64_t count, int32_t least);

}  // namespace gristmill
