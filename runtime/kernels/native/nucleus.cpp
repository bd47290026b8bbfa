// Top-p over a whole vocabulary: bounds on the least weight to keep that close in, pass after pass.
#include "nucleus.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "largest_tokens.hpp"
#include "vocabulary_passes.hpp"

namespace gristmill {
namespace {

constexpr double kListTokens = 4096.0;  // so many are listed, and looked at alone from then on
constexpr double kFewTokens = 48.0;     // so many are ranked
constexpr int64_t kSampleStride = 16;     // of the blocks that tell where to look
constexpr int32_t kGuessWidth = 1 << 20;  // in bits of a weight: an eighth of an octave

int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The least weight to keep lies in [least, end), as bits; weights of at least the one or the other add
// up to these totals.
struct Bracket {
  int32_t least;
  int32_t end;
  double total_of_least;
  double total_of_end;

  bool is_narrow(double few_tokens) const {
    const double most_tokens = (total_of_least - total_of_end) / float_of(least);
    return most_tokens <= few_tokens || end - least <= 1;
  }
};

// Blocks of weights that a pass adds up: every `stride`-th, and what more there is above them all.
struct Passed {
  const float* weights;
  int64_t blocks;
  int64_t stride = 1;
  double above = 0.0;
};

Passed whole_row(const SamplingScratch& scratch) {
  return {scratch.weights.data(), static_cast<int64_t>(scratch.sums.size())};
}

// The part of the bracket that remains after a pass with rising bounds inside of it.
Bracket split(const Bracket& bracket, const float* bounds, double target, const Passed& passed) {
  double totals[kBoundsPerPass];
  add_weights(passed.weights, passed.blocks, passed.stride, bounds, totals);
  for (double& total : totals) total += passed.above;
  Bracket closer = bracket;
  for (int i = 0; i < kBoundsPerPass; ++i) {
    if (totals[i] < target) {
      closer.end = bits_of(bounds[i]);
      closer.total_of_end = totals[i];
      break;
    }
    closer.least = bits_of(bounds[i]);
    closer.total_of_least = totals[i];
  }
  return closer;
}

Bracket halve_twice(const Bracket& bracket, double target, const Passed& passed) {
  float bounds[kBoundsPerPass];
  const int64_t width = bracket.end - bracket.least;
  for (int i = 0; i < kBoundsPerPass; ++i) {
    bounds[i] = float_of(bracket.least + static_cast<int32_t>(width * (i + 1) / (kBoundsPerPass + 1)));
  }
  return split(bracket, bounds, target, passed);
}

// What is left of a bracket if a sample of the blocks is like all: right or wrong, a place to split it. The
// few tokens of large weight hardly ever are; so what the sample tells is how much those below a bound add
// up to.
Bracket split_by_sample(const Bracket& bracket, double top_p, const SamplingScratch& scratch) {
  Bracket guess = bracket;
  double total = 0.0;
  int64_t blocks = 0;
  for (size_t block = 0; block < scratch.sums.size(); block += kSampleStride, ++blocks) {
    total += scratch.sums[block];
  }
  const double share = static_cast<double>(blocks) / static_cast<double>(scratch.sums.size());
  const double target = total - (1.0 - top_p) * bracket.total_of_least * share;
  Passed sample = whole_row(scratch);
  sample.stride = kSampleStride;
  while (guess.end - guess.least > kGuessWidth) guess = halve_twice(guess, target, sample);
  const int32_t least = std::max(guess.least - kGuessWidth, bracket.least);
  const int32_t end = std::min(guess.end + kGuessWidth, bracket.end);
  const float bounds[kBoundsPerPass] = {float_of(least), float_of(guess.least), float_of(end)};
  return split(bracket, bounds, top_p * bracket.total_of_least, whole_row(scratch));
}

// No token of weight below (1 - top_p) * total / size is kept: all such tokens together are too few to
// be missed. Half of that is a bound that outweighs any rounding.
Bracket find_bracket(double top_p, double total, const SamplingScratch& scratch) {
  const double least = 0.5 * (1.0 - top_p) * total / static_cast<double>(scratch.weights.size());
  const float bound = std::max(static_cast<float>(least), std::numeric_limits<float>::min());
  Bracket bracket{bits_of(bound), bits_of(1.0f) + 1, total, 0.0};
  if (!bracket.is_narrow(kListTokens)) bracket = split_by_sample(bracket, top_p, scratch);
  while (!bracket.is_narrow(kListTokens)) bracket = halve_twice(bracket, top_p * total, whole_row(scratch));
  return bracket;
}

// The tokens inside of the bracket, in order of their ids. Behind their weights whole blocks are zero.
TokenList tokens_inside(const Bracket& bracket, SamplingScratch& scratch) {
  scratch.kept_ids.resize(scratch.weights.size());
  int32_t* ids = scratch.kept_ids.data();
  const int64_t size = find_between(scratch.weights.data(), static_cast<int64_t>(scratch.weights.size()),
                                    float_of(bracket.least), float_of(bracket.end), ids);
  scratch.kept_weights.assign(vocabulary_blocks(size) * kVocabularyBlock, 0.0f);
  float* weights = scratch.kept_weights.data();
  for (int64_t i = 0; i < size; ++i) weights[i] = scratch.weights[ids[i]];
  return {ids, weights, weights, size};
}

// Narrows bracket and list until the tokens left are few.
void close_in(Bracket& bracket, TokenList& tokens, double target) {
  const Passed list{tokens.weights, vocabulary_blocks(tokens.size), 1, bracket.total_of_end};
  while (!bracket.is_narrow(kFewTokens)) bracket = halve_twice(bracket, target, list);
  const float least = float_of(bracket.least), end = float_of(bracket.end);
  int64_t kept = 0;
  for (int64_t i = 0; i < tokens.size; ++i) {
    const float weight = tokens.weights[i];
    tokens.ids[kept] = tokens.ids[i];
    tokens.weights[kept] = weight;
    kept += static_cast<int64_t>(weight >= least) & static_cast<int64_t>(weight < end);
  }
  tokens.size = kept;
}

// The sum of the weights of blocks first .. end - 1 that are at least `least`.
double add_range(const SamplingScratch& scratch, int64_t first, int64_t end, float least) {
  return total_weight(scratch.weights.data() + first * kVocabularyBlock, end - first, least);
}

}  // namespace

bool in_nucleus(int64_t token, double top_p, double total, const SamplingScratch& scratch) {
  const float weight = scratch.weights[token], larger = float_of(bits_of(weight) + 1);
  const int64_t block = token / kVocabularyBlock, start = block * kVocabularyBlock;
  double before = add_range(scratch, 0, block, weight);
  before += add_range(scratch, block + 1, static_cast<int64_t>(scratch.sums.size()), larger);
  for (int64_t i = start; i < start + kVocabularyBlock; ++i) {
    if (scratch.weights[i] >= (i < token ? weight : larger)) before += scratch.weights[i];
  }
  return before < top_p * total;
}

Nucleus find_nucleus(double top_p, double total, SamplingScratch& scratch) {
  Bracket bracket = find_bracket(top_p, total, scratch);
  TokenList open = tokens_inside(bracket, scratch);
  close_in(bracket, open, top_p * total);
  const float least = float_of(bracket.least);
  for (int64_t i = 0; i < open.size; ++i) scratch.weights[open.ids[i]] = 0.0f;
  keep_largest(open, top_p * total - bracket.total_of_end);
  for (int64_t i = 0; i < open.size; ++i) scratch.weights[open.ids[i]] = open.weights[i];
  sum_weights(scratch.weights.data(), static_cast<int64_t>(scratch.sums.size()), least, scratch.sums.data());
  double kept = 0.0;
  for (const double sum : scratch.sums) kept += sum;
  return {least, kept};
}

}  // namespace gristmill
