#include "hadamard.hpp"

#include <cmath>
#include <utility>

#include "kernel_table.hpp"

namespace gristmill {
namespace {

// Sums and differences of the two halves, shuffled: in this form every stage is the same and vectorizes,
// and after log2(2 half) stages all numbers are back in their order (Pease 1968).
void butterflies(const float* __restrict from, float* __restrict to, int half) {
  for (int i = 0; i < half; ++i) {
    to[2 * i] = from[i] + from[half + i];
    to[2 * i + 1] = from[i] - from[half + i];
  }
}

}  // namespace

void hadamard(float* x, int n) {
  const int block = n & -n;
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  alignas(64) float other[kMostHeadDim];
  for (int start = 0; start < n; start += block) {
    float* from = x + start;
    float* to = other;
    for (int stage = 1; stage < block; stage *= 2) {
      butterflies(from, to, block / 2);
      std::swap(from, to);
    }
    for (int i = 0; i < block; ++i) x[start + i] = from[i] * norm;
  }
}

}  // namespace gristmill
