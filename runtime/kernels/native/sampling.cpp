// Choosing tokens from rows of logits: what the settings leave, and the draw among it.
#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "largest_tokens.hpp"
#include "nucleus.hpp"
#include "vocabulary_passes.hpp"

namespace gristmill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One row with the maxima of its blocks, so that most blocks need not be read again.
struct Row {
  const float* logits;
  int64_t size;
  const std::vector<float>& maxima;
  float best;
};

// The largest logit, or NaN if any is not a number.
float find_maxima(const float* logits, int64_t size, std::vector<float>& maxima) {
  maxima.resize(vocabulary_blocks(size));
  return block_maxima(logits, size, maxima.data());
}

int32_t first_best(const Row& row) {
  const auto block = std::find(row.maxima.begin(), row.maxima.end(), row.best) - row.maxima.begin();
  const float* start = row.logits + block * kVocabularyBlock;
  return static_cast<int32_t>(std::find(start, row.logits + row.size, row.best) - row.logits);
}

float softmax_scale(double temperature) {
  // Finite and not 0, so that the product with a difference of logits is a number.
  constexpr double least = std::numeric_limits<float>::min();
  constexpr double most = 1e38;
  return static_cast<float>(std::min(std::max(1.0 / temperature, least), most));
}

// The softmax weights of the whole row into scratch.weights and scratch.sums; returns their total.
double weigh_row(const Row& row, float scale, SamplingScratch& scratch) {
  scratch.sums.resize(row.maxima.size());
  scratch.weights.resize(row.maxima.size() * kVocabularyBlock);
  softmax_weights(row.logits, row.size, row.best, scale, scratch.weights.data(), scratch.sums.data());
  double total = 0.0;
  for (const double sum : scratch.sums) total += sum;
  return total;
}

// ---------------------------------------------------------------- lists of tokens

// The tokens with a logit of at least `least`.
TokenList gather(const Row& row, float least, SamplingScratch& scratch) {
  scratch.kept_ids.resize(row.size + 1);
  int64_t size = 0;
  for (size_t block = 0; block < row.maxima.size();) {
    const size_t first = block;
    while (block < row.maxima.size() && row.maxima[block] >= least) ++block;
    const int64_t start = static_cast<int64_t>(first) * kVocabularyBlock;
    const int64_t count = std::min(static_cast<int64_t>(block) * kVocabularyBlock, row.size) - start;
    int32_t* found = scratch.kept_ids.data() + size;
    const int64_t num_found = find_at_least(row.logits + start, count, least, found);
    for (int64_t i = 0; i < num_found; ++i) found[i] += static_cast<int32_t>(start);
    size += num_found;
    while (block < row.maxima.size() && !(row.maxima[block] >= least)) ++block;
  }
  scratch.kept_values.resize(size);
  for (int64_t i = 0; i < size; ++i) scratch.kept_values[i] = row.logits[scratch.kept_ids[i]];
  return {scratch.kept_ids.data(), scratch.kept_values.data(), nullptr, size};
}

// The least logit that min-p keeps: (logit - best) / temperature >= log(min_p), to the last bit.
float least_by_min_p(float best, double temperature, double min_p) {
  const double bound = std::log(min_p);
  const auto passes = [&](float x) {
    return (static_cast<double>(x) - static_cast<double>(best)) / temperature >= bound;
  };
  float least = best;
  const double estimate = static_cast<double>(best) + temperature * bound;
  if (estimate < best) {
    constexpr float most = std::numeric_limits<float>::max();
    least = estimate > -most ? static_cast<float>(estimate) : -most;
  }
  while (!passes(least)) least = std::nextafter(least, kInfinity);
  while (least > -kInfinity && passes(std::nextafter(least, -kInfinity))) {
    least = std::nextafter(least, -kInfinity);
  }
  return least;
}

// A logit that about `count` tokens reach, and likely no fewer. The count-th largest of the block maxima
// is such a logit for certain; beyond that, the first token of each block is a sample of all, and its rank
// is off by more than four standard errors in one row of thirty thousand.
float least_by_count(const Row& row, int64_t count) {
  const int64_t blocks = static_cast<int64_t>(row.maxima.size());
  if (count <= blocks) return nth_largest(row.maxima, count);
  const double expected = static_cast<double>(count) / kVocabularyBlock;
  const int64_t rank = static_cast<int64_t>(expected + 4.0 * std::sqrt(expected)) + 1;
  if (rank > blocks) return -kInfinity;
  std::vector<float> sample(blocks);
  for (int64_t block = 0; block < blocks; ++block) sample[block] = row.logits[block * kVocabularyBlock];
  return nth_largest(sample, rank);
}

// The `count` tokens of largest logit, of those with a logit of at least `least`.
TokenList largest_tokens(const Row& row, int64_t count, float least, SamplingScratch& scratch) {
  const float likely = least_by_count(row, count);
  TokenList kept = gather(row, std::max(least, likely), scratch);
  if (kept.size < count && likely > least) kept = gather(row, least, scratch);
  if (count < kept.size) keep_largest(kept, static_cast<double>(count));
  return kept;
}

// ---------------------------------------------------------------- the draw

// The first place whose cumulative weight exceeds `target`, or if rounding leaves none, the last with a
// weight; `target` becomes what remains of it there.
template <typename Number>
int64_t invert(const Number* weights, int64_t size, double& target) {
  double cumulative = 0.0;
  double before_last = 0.0;
  int64_t last = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (weights[i] <= 0) continue;
    before_last = cumulative;
    last = i;
    cumulative += weights[i];
    if (cumulative > target) break;
  }
  target -= before_last;
  return last;
}

// Among the tokens of scratch.weights that belong to the nucleus.
int32_t draw_from_row(const SamplingScratch& scratch, const Nucleus& nucleus, double uniform) {
  double target = uniform * nucleus.total;
  const int64_t block = invert(scratch.sums.data(), static_cast<int64_t>(scratch.sums.size()), target);
  const int64_t start = block * kVocabularyBlock;
  float weights[kVocabularyBlock];
  for (int64_t i = 0; i < kVocabularyBlock; ++i) {
    const float weight = scratch.weights[start + i];
    weights[i] = weight >= nucleus.least ? weight : 0.0f;
  }
  return static_cast<int32_t>(start + invert(weights, kVocabularyBlock, target));
}

int32_t draw_from_list(const TokenList& tokens, double uniform) {
  double target = 0.0;
  for (int64_t i = 0; i < tokens.size; ++i) target += tokens.weights[i];
  target *= uniform;
  return tokens.ids[invert(tokens.weights, tokens.size, target)];
}

// What min-p and top-k leave, and of that the nucleus.
TokenList filtered_tokens(const Row& row, const SamplingSettings& settings, float scale,
                          SamplingScratch& scratch) {
  const float least =
      settings.min_p > 0.0 ? least_by_min_p(row.best, settings.temperature, settings.min_p) : -kInfinity;
  const bool counts = settings.top_k > 0 && settings.top_k < row.size;
  TokenList kept = counts ? largest_tokens(row, settings.top_k, least, scratch)
                          : gather(row, least, scratch);
  scratch.kept_weights.resize(vocabulary_blocks(kept.size) * kVocabularyBlock);
  kept.weights = scratch.kept_weights.data();
  softmax_weights(kept.values, kept.size, row.best, scale, kept.weights, nullptr);
  if (settings.top_p < 1.0) {
    double total = 0.0;
    for (int64_t i = 0; i < kept.size; ++i) total += kept.weights[i];
    keep_largest(kept, settings.top_p * total);
  }
  return kept;
}

int32_t draw(const Row& row, const SamplerState& state, SamplingScratch& scratch) {
  const SamplingSettings& settings = state.settings();
  const float scale = softmax_scale(settings.temperature);
  if (settings.min_p > 0.0 || (settings.top_k > 0 && settings.top_k < row.size)) {
    return draw_from_list(filtered_tokens(row, settings, scale, scratch), state.uniform());
  }
  Nucleus nucleus{0.0f, weigh_row(row, scale, scratch)};
  if (settings.top_p < 1.0) nucleus = find_nucleus(settings.top_p, nucleus.total, scratch);
  return draw_from_row(scratch, nucleus, state.uniform());
}

Logprobs row_logprobs(const Row& row, int64_t token_id, int32_t count, SamplingScratch& scratch) {
  const double log_total = std::log(weigh_row(row, 1.0f, scratch));
  const auto logprob = [&](float logit) {
    return static_cast<double>(logit) - static_cast<double>(row.best) - log_total;
  };
  Logprobs result;
  result.finite = true;
  result.logprob = logprob(row.logits[token_id]);
  if (count <= 0) return result;
  const TokenList best = largest_tokens(row, std::min<int64_t>(count, row.size), -kInfinity, scratch);
  for (int64_t i = 0; i < best.size; ++i) result.top.push_back({best.ids[i], logprob(best.values[i])});
  std::stable_sort(result.top.begin(), result.top.end(),
                   [](const RankedToken& a, const RankedToken& b) { return a.logprob > b.logprob; });
  return result;
}

// The choice among the candidates, without its log probabilities.
Choice choose(const float* logits, const SamplerState& state, SamplingScratch& scratch) {
  const float* candidates = state.candidate_logits(logits, scratch.candidates);
  const int64_t size = state.num_candidates();
  Choice choice;
  choice.largest = find_maxima(candidates, size, scratch.maxima);
  if (choice.largest == -kInfinity && state.has_allowed()) {  // are others of the row finite?
    choice.largest = find_maxima(logits, state.vocab_size(), scratch.maxima);
    choice.fault = ChoiceFault::no_token;
  }
  if (!std::isfinite(choice.largest)) choice.fault = ChoiceFault::not_finite;
  if (choice.fault != ChoiceFault::none) return choice;
  Row row{candidates, size, scratch.maxima, choice.largest};
  if (state.adjusts()) {
    scratch.adjusted.assign(candidates, candidates + size);
    state.adjust(scratch.adjusted.data());
    row.logits = scratch.adjusted.data();
    row.best = find_maxima(row.logits, size, scratch.maxima);
    if (row.best == -kInfinity) {
      choice.fault = ChoiceFault::no_token;
      return choice;
    }
  }
  const bool greedy = state.settings().temperature == 0.0;
  choice.token_id = state.candidate(greedy ? first_best(row) : draw(row, state, scratch));
  return choice;
}

}  // namespace

Choice sample_row(const float* logits, SamplerState& state, SamplingScratch& scratch) {
  Choice choice = choose(logits, state, scratch);
  if (choice.fault != ChoiceFault::none) return choice;
  const int32_t count = state.settings().logprobs;
  if (count >= 0) {  // of the model's own distribution
    choice.logprobs = token_logprobs(logits, state.vocab_size(), choice.token_id, count, scratch);
    if (!choice.logprobs->finite) {  // a token that is not allowed is to blame
      choice = {ChoiceFault::not_finite, -1, find_maxima(logits, state.vocab_size(), scratch.maxima), {}};
      return choice;
    }
  }
  state.append(choice.token_id);
  return choice;
}

Logprobs token_logprobs(const float* logits, int64_t vocab_size, int64_t token_id, int32_t count,
                        SamplingScratch& scratch) {
  const Row row{logits, vocab_size, scratch.maxima, find_maxima(logits, vocab_size, scratch.maxima)};
  if (!std::isfinite(row.best)) return {};
  return row_logprobs(row, token_id, count, scratch);
}

}  // namespace gristmill
