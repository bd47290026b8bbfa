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

// Whole numbers, as only their maximum may be taken in any order under the rules for floats.
GRISTMILL_INLINE float block_maximum(const float* block, int32_t& largest_magnitude) {
  int32_t most = std::numeric_limits<int32_t>::min();
  int32_t magnitude = largest_magnitude;
  for (int i = 0; i < kVocabularyBlock; ++i) {
    const int32_t bits = bits_of(block[i] + 0.0f);  // both zeros are one
    most = std::max(most, ordered(bits));
    magnitude = std::max(magnitude, bits & 0x7fffffff);
  }
  largest_magnitude = magnitude;
  return float_of(ordered(most));
}

// e^y for y in [-87, 0] by the polynomial of Cephes' expf; 0 below, and for what is not a number.
GRISTMILL_INLINE float exponential(float y) {
  constexpr float kLeast = -87.0f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float x = y >= kLeast ? y : kLeast;
  const float shifted = x * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent = static_cast<int32_t>(static_cast<uint32_t>(bits_of(shifted)) << 23);
  const float result = float_of(bits_of(p) + exponent);
  return y >= kLeast ? result : 0.0f;
}

GRISTMILL_INLINE double block_weights(const float* block, float best, float scale, float* weights) {
  constexpr int kQuarter = kVocabularyBlock / 4;
  for (int i = 0; i < kVocabularyBlock; ++i) weights[i] = exponential((block[i] - best) * scale);
  float sums[kQuarter];
  for (int i = 0; i < kQuarter; ++i) {
    sums[i] = (weights[i] + weights[i + kQuarter]) + (weights[i + 2 * kQuarter] + weights[i + 3 * kQuarter]);
  }
  for (int i = 0; i < 8; ++i) sums[i] += sums[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
static_assert(kVocabularyBlock == 64, "the sum of a block is written for 64 weights");

// The last, partial block with the lowest value behind its end.
struct PaddedBlock {
  float values[kVocabularyBlock];

  PaddedBlock(const float* from, int64_t count) {
    std::fill_n(values, kVocabularyBlock, -std::numeric_limits<float>::infinity());
    std::copy_n(from, count, values);
  }
};

}  // namespace

GRISTMILL_EVERY_WIDTH
bool block_maxima(const float* values, int64_t count, float* maxima) {
  int32_t largest_magnitude = 0;
  const int64_t whole = count / kVocabularyBlock;
  for (int64_t block = 0; block < whole; ++block) {
    maxima[block] = block_maximum(values + block * kVocabularyBlock, largest_magnitude);
  }
  if (whole * kVocabularyBlock < count) {
    const PaddedBlock last(values + whole * kVocabularyBlock, count - whole * kVocabularyBlock);
    maxima[whole] = block_maximum(last.values, largest_magnitude);
  }
  return largest_magnitude <= kInfinityBits;
}

GRISTMILL_EVERY_WIDTH
void softmax_weights(const float* values, int64_t count, float best, float scale, float* weights, double* sums) {
  const int64_t blocks = vocabulary_blocks(count);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = block * kVocabularyBlock;
    double sum;
    if (start + kVocabularyBlock <= count) {
      sum = block_weights(values + start, best, scale, weights + start);
    } else {
      const PaddedBlock last(values + start, count - start);
      sum = block_weights(last.values, best, scale, weights + start);
    }
    if (sums != nullptr) sums[block] = sum;
  }
}

}  // namespace gristmill
