#include "rope_angles.hpp"

#include <cmath>

namespace gristmill {

RopeAngles::RopeAngles(const std::vector<Rope>& ropes) : ropes_(ropes) {
  for (const Rope& rope : ropes) {
    starts_.push_back(stride_);
    stride_ += 2 * static_cast<int64_t>(rope.inv_freq.size());
  }
}

void RopeAngles::reserve(int positions) {
  wanted_ = positions;
  if (stride_ == 0) return;
  while (static_cast<int64_t>(blocks_.size()) * kBlockPositions < positions) {
    blocks_.emplace_back(kBlockPositions * stride_ * static_cast<int64_t>(sizeof(float)));
  }
}

void RopeAngles::compute(int index) {
  if (stride_ == 0) return;
  const int position = known_ + index;
  float* cos = floats(position);
  for (const Rope& rope : ropes_) {
    const int64_t half = static_cast<int64_t>(rope.inv_freq.size());
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(position) * rope.inv_freq[i];  // rounded to float, as in torch
      cos[i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
      cos[half + i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
    }
    cos += 2 * half;
  }
}

}  // namespace gristmill
