// The most probable tokens of a list, without sorting it.
#pragma once

#include <cstdint>
#include <vector>

namespace gristmill {

// Tokens in order of their ids. `weights` may be null: every token then weighs 1.
struct TokenList {
  int32_t* ids;
  float* values;
  float* weights;
  int64_t size;
};

// Keeps, in place and in order, the fewest tokens of largest value whose weights add up to `target`,
// or all if they fall short. Of tokens with equal values the first are kept.
void keep_largest(TokenList& tokens, double target);

// The `rank`-th largest (from 1) of the values.
float nth_largest(const std::vector<float>& values, int64_t rank);

}  // namespace gristmill
