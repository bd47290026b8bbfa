// Cosines and sines of the rotary embeddings, computed once for each position that has been used.
#pragma once

#include <vector>

#include "aligned.hpp"
#include "model.hpp"

namespace gristmill {

class RopeAngles {
 public:
  explicit RopeAngles(const std::vector<Rope>& ropes);

  // Memory for the positions below `positions`. Those that are missing are then computed, each by any
  // thread, and kept. Throws NoMemory.
  void reserve(int positions);
  int missing() const { return wanted_ > known_ ? wanted_ - known_ : 0; }
  void compute(int index);  // 0 .. missing() - 1
  void keep() { known_ += missing(); }

  // The cosines of a position, rotary_dim / 2 of them, then as many sines.
  const float* at(int rope, int position) const { return floats(position) + starts_[rope]; }

 private:
  static constexpr int kBlockPositions = 1024;

  float* floats(int position) const {
    return blocks_[position / kBlockPositions].as<float>() + position % kBlockPositions * stride_;
  }

  const std::vector<Rope>& ropes_;
  std::vector<int64_t> starts_;  // of each rope among a position's floats
  int64_t stride_ = 0;           // floats of a position
  std::vector<Buffer> blocks_;   // of kBlockPositions positions each: growing moves nothing
  int known_ = 0, wanted_ = 0;
};

}  // namespace gristmill
