#include "hadamard.hpp"

#include <cmath>

namespace gristmill {

void hadamard(float* x, int n) {
  const int block = n & -n;
  for (int half = 1; half < block; half *= 2) {
    for (int start = 0; start < n; start += 2 * half) {
      float* first = x + start;
      float* second = first + half;
      for (int i = 0; i < half; ++i) {
        const float a = first[i], b = second[i];
        first[i] = a + b;
        second[i] = a - b;
      }
    }
  }
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int i = 0; i < n; ++i) x[i] *= norm;
}

}  // namespace gristmill
