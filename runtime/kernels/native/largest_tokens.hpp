// The most probable tokens of a list, without sorting it.
#pragma once

#include <cstdint>
#include <vector>

namespace gristmill {

// Tokens in order of their ids; `weights` may be null where nothing asks for them.
struct TokenList {
  int32_t* ids;
  float* values;
  float* weights;
  int64_t size;
};

// Keeps, in place and in order, the fewest tokens of largest value whose weights add up to `target`,
// or all if they fall short. Of tokens with equal values the first are kept.
void keep_largest(TokenList& tokens, double target);

// Keeps, in place and in order, the `count` tokens of largest value, or all if there are fewer. Of tokens
// with equal values the first are kept. Weights stay as they are; `keys` is memory.
void keep_first(TokenList& tokens, int64_t count, std::vector<int32_t>& keys);

// The `rank`-th largest (from 1) of the values; `keys` is memory.
float nth_largest(const float* values, int64_t size, int64_t rank, std::vector<int32_t>& keys);

}  // namespace gristmill
