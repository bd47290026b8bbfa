// Passes over a row of logits, as plain loops that the compiler vectorises for several widths.
#include "vocabulary_passes.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__)
#define GRISTMILL_EVERY_WIDTH __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define GRISTMILL_EVERY_WIDTH
#endif
#define GRISTMILL_INLINE inline __attribute__((always_inline))

namespace gristmill {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

GRISTMILL_INLINE int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

GRISTMILL_INLINE float float_of(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Between bits and whole numbers in the order of the floats; it is its own inverse.
GRISTMILL_INLINE int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

struct Extent {
  int32_t most = ~kInfinityBits;  // ordered: of no values, -infinity
  int32_t magnitude = 0;
};

// Whole numbers, as only their maximum may be taken in any order under the rules for floats.
GRISTMILL_INLINE float maximum(const float* values, int64_t count, Extent& extent) {
  int32_t most = std::numeric_limits<int32_t>::min();
  int32_t magnitude = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = bits_of(values[i] + 0.0f);  // both zeros are one
    most = std::max(most, ordered(bits));
    magnitude = std::max(magnitude, bits & 0x7fffffff);
  }
  extent.most = std::max(extent.most, most);
  extent.magnitude = std::max(extent.magnitude, magnitude);
  return float_of(ordered(most));
}

GRISTMILL_INLINE float tile_maximum(const float* values, int64_t count) {
  Extent extent;
  const float most = maximum(values, count, extent);
  return extent.magnitude > kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : most;
}

// 2^y for y in [-126, 0], by a minimax polynomial of the fraction; 0 below. As unsigned numbers the bits
// of negative floats grow with their magnitude, which clamps without a branch.
GRISTMILL_INLINE float power_of_two(float y) {
  constexpr uint32_t kLeast = 0xc2fc0000u;  // -126
  constexpr float kMagic = 12582912.0f;     // 1.5 * 2^23: adding it rounds to a whole number
  const uint32_t bits = static_cast<uint32_t>(bits_of(y));
  const int32_t inside = -static_cast<int32_t>(bits <= kLeast);
  const float x = float_of(static_cast<int32_t>(std::min(bits, kLeast)));
  const float shifted = x + kMagic;
  const float f = x - (shifted - kMagic);
  float p = f * 0.001326467958278954f + 0.009671502746641636f;
  p = p * f + 0.05550733953714371f;
  p = p * f + 0.24022242426872253f;
  p = p * f + 0.6931470036506653f;
  p = p * f + 1.0f;
  const int32_t exponent = static_cast<int32_t>(static_cast<uint32_t>(bits_of(shifted)) << 23);
  return float_of((bits_of(p) + exponent) & inside);
}

// A weight of at least the one with these bits, or 0. Weights are not negative: their bits have their order.
GRISTMILL_INLINE float at_least(float weight, int32_t least_bits) {
  const int32_t bits = bits_of(weight);
  return float_of(bits & -static_cast<int32_t>(bits >= least_bits));
}

// The last, partial block with the lowest value behind its end.
struct PaddedBlock {
  float values[kVocabularyBlock];

  PaddedBlock(const float* from, int64_t count) {
    std::fill_n(values, kVocabularyBlock, -std::numeric_limits<float>::infinity());
    std::copy_n(from, count, values);
  }
};

constexpr int64_t kBlocksInFloat32 = 16;  // so many blocks are added up before float64 takes over
constexpr int kQuarter = kVocabularyBlock / 4;

// Adds a block's weights of at least a bound to sixteen sums.
GRISTMILL_INLINE void add_block(const float* weights, int32_t least_bits, float* sums) {
  for (int i = 0; i < kQuarter; ++i) {
    const float* of_lane = weights + i;
    sums[i] += (at_least(of_lane[0], least_bits) + at_least(of_lane[kQuarter], least_bits)) +
               (at_least(of_lane[2 * kQuarter], least_bits) + at_least(of_lane[3 * kQuarter], least_bits));
  }
}

GRISTMILL_INLINE double sum_of_sixteen(float* sums) {
  for (int i = 0; i < 8; ++i) sums[i] += sums[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
static_assert(kQuarter == 16, "sixteen sums of a block are added up");

// The sums of up to sixteen blocks from their sixteen lanes each, step by step for all: a block alone would
// be a chain of shuffles.
constexpr int64_t kGroup = 16;
using Lanes = float[kGroup][kQuarter];

GRISTMILL_INLINE void sum_lanes(Lanes& lanes, int64_t blocks, double* sums) {
  for (int64_t block = 0; block < kGroup; ++block) {
    for (int i = 0; i < 8; ++i) lanes[block][i] += lanes[block][i + 8];
  }
  for (int64_t block = 0; block < kGroup; ++block) {
    for (int i = 0; i < 4; ++i) lanes[block][i] += lanes[block][i + 4];
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const float* four = lanes[block];
    sums[block] = (four[0] + four[1]) + (four[2] + four[3]);
  }
}

template <int kBounds>
GRISTMILL_INLINE void add_each(const float* weights, int64_t blocks, int64_t stride, const float* bounds,
                               double* totals) {
  int32_t bits[kBounds];
  for (int bound = 0; bound < kBounds; ++bound) {
    bits[bound] = bits_of(bounds[bound]);
    totals[bound] = 0.0;
  }
  const int64_t span = kBlocksInFloat32 * stride;
  for (int64_t first = 0; first < blocks; first += span) {
    float sums[kBounds][kQuarter] = {};
    for (int64_t block = first; block < std::min(first + span, blocks); block += stride) {
      const float* of_block = weights + block * kVocabularyBlock;
      for (int bound = 0; bound < kBounds; ++bound) add_block(of_block, bits[bound], sums[bound]);
    }
    for (int bound = 0; bound < kBounds; ++bound) totals[bound] += sum_of_sixteen(sums[bound]);
  }
}

GRISTMILL_INLINE void block_weights(const float* block, float best, float binary_scale, float* weights) {
  for (int i = 0; i < kVocabularyBlock; ++i) weights[i] = power_of_two((block[i] - best) * binary_scale);
}

// The softmax weights of a list of values; memory(start) is where those of a block go.
template <typename Memory>
GRISTMILL_INLINE void softmax(const float* values, int64_t count, float best, float scale, double* sums,
                              const Memory& memory) {
  const int64_t blocks = vocabulary_blocks(count);
  const float binary_scale = scale * 1.44269504088896341f;
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t end = std::min(first + kGroup, blocks);
    Lanes lanes = {};
    for (int64_t block = first; block < end; ++block) {
      const int64_t start = block * kVocabularyBlock;
      float* weights = memory(start);
      if (start + kVocabularyBlock <= count) {
        block_weights(values + start, best, binary_scale, weights);
      } else {
        const PaddedBlock last(values + start, count - start);
        block_weights(last.values, best, binary_scale, weights);
      }
      add_block(weights, 0, lanes[block - first]);
    }
    sum_lanes(lanes, end - first, sums + first);
  }
}

// A bit for each value of a block in [least, end). The product moves the lowest bits of eight
// bytes side by side.
GRISTMILL_INLINE uint64_t mask_between(const float* block, float least, float end) {
  uint8_t marks[kVocabularyBlock];
  for (int i = 0; i < kVocabularyBlock; ++i) {
    marks[i] = static_cast<uint8_t>(block[i] >= least) & static_cast<uint8_t>(block[i] < end);
  }
  uint64_t words[kVocabularyBlock / 8];
  std::memcpy(words, marks, sizeof marks);
  uint64_t mask = 0;
  for (int i = 0; i < kVocabularyBlock / 8; ++i) mask |= (words[i] * 0x0102040810204080u) >> 56 << (8 * i);
  return mask;
}

}  // namespace

GRISTMILL_EVERY_WIDTH
float block_maxima(const float* values, int64_t count, float* maxima) {
  Extent extent;
  const int64_t whole = count / kVocabularyBlock;
  for (int64_t block = 0; block < whole; ++block) {
    maxima[block] = maximum(values + block * kVocabularyBlock, kVocabularyBlock, extent);
  }
  if (whole * kVocabularyBlock < count) {
    const PaddedBlock last(values + whole * kVocabularyBlock, count - whole * kVocabularyBlock);
    maxima[whole] = maximum(last.values, kVocabularyBlock, extent);
  }
  if (extent.magnitude > kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
  return float_of(ordered(extent.most));
}

GRISTMILL_EVERY_WIDTH
void tile_maxima(const float* values, int64_t rows, int64_t count, int64_t stride, float* maxima,
                 int64_t maxima_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* tile = values + row * stride;
    maxima[row * maxima_stride] =
        count == kVocabularyTile ? tile_maximum(tile, kVocabularyTile) : tile_maximum(tile, count);
  }
}

GRISTMILL_EVERY_WIDTH
float merge_maxima(const float* tiles, int64_t count, float* maxima) {
  static_assert(kVocabularyBlock == 2 * kVocabularyTile, "a block is two tiles");
  int32_t most = ~kInfinityBits;
  for (int64_t block = 0; block < count / 2; ++block) {
    const int32_t larger =
        std::max(ordered(bits_of(tiles[2 * block])), ordered(bits_of(tiles[2 * block + 1])));
    maxima[block] = float_of(ordered(larger));
    most = std::max(most, larger);
  }
  if (count % 2 != 0) {
    maxima[count / 2] = tiles[count - 1];
    most = std::max(most, ordered(bits_of(tiles[count - 1])));
  }
  return float_of(ordered(most));
}

GRISTMILL_EVERY_WIDTH
void softmax_weights(const float* values, int64_t count, float best, float scale, float* weights,
                     double* sums) {
  softmax(values, count, best, scale, sums, [weights](int64_t start) { return weights + start; });
}

GRISTMILL_EVERY_WIDTH
void softmax_sums(const float* values, int64_t count, float best, float scale, double* sums) {
  float weights[kVocabularyBlock];
  softmax(values, count, best, scale, sums, [&weights](int64_t) { return weights; });
}

GRISTMILL_EVERY_WIDTH
void sum_weights(const float* weights, int64_t blocks, float least, double* sums) {
  const int32_t least_bits = bits_of(least);
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t end = std::min(first + kGroup, blocks);
    Lanes lanes = {};
    for (int64_t block = first; block < end; ++block) {
      add_block(weights + block * kVocabularyBlock, least_bits, lanes[block - first]);
    }
    sum_lanes(lanes, end - first, sums + first);
  }
}

GRISTMILL_EVERY_WIDTH
void add_weights(const float* weights, int64_t blocks, int64_t stride, const float* bounds, double* totals) {
  add_each<kBoundsPerPass>(weights, blocks, stride, bounds, totals);
}

GRISTMILL_EVERY_WIDTH
double total_weight(const float* weights, int64_t blocks, float least) {
  double total;
  add_each<1>(weights, blocks, 1, &least, &total);
  return total;
}

GRISTMILL_EVERY_WIDTH
int64_t find_between(const float* values, int64_t count, float least, float end, int32_t* places) {
  const int64_t whole = count / kVocabularyBlock * kVocabularyBlock;
  int64_t found = 0;
  for (int64_t start = 0; start < whole; start += kVocabularyBlock) {
    for (uint64_t mask = mask_between(values + start, least, end); mask != 0; mask &= mask - 1) {
      places[found++] = static_cast<int32_t>(start + __builtin_ctzll(mask));
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    if (values[i] >= least && values[i] < end) places[found++] = static_cast<int32_t>(i);
  }
  return found;
}

GRISTMILL_EVERY_WIDTH
void order_keys(const float* values, int64_t count, int32_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = ordered(bits_of(values[i] + 0.0f));
}

float value_of_key(int32_t key) { return float_of(ordered(key)); }

GRISTMILL_EVERY_WIDTH
int64_t count_keys(const int32_t* keys, int64_t count, int32_t least) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += static_cast<int32_t>(keys[i] >= least);
  return found;
}

}  // namespace gristmill
