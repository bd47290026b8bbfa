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

using Row = CandidateRow;

float softmax_scale(double temperature) {
  // Finite and not 0, so that the product with a difference of logits is a number.
  constexpr double least = std::numeric_limits<float>::min();
  constexpr double most = 1e38;
  return static_cast<float>(std::min(std::max(1.0 / temperature, least), most));
}

// Sixteen sums side by side: one alone would wait for each addition.
double total_of(const std::vector<double>& sums) {
  double lanes[16] = {};
  for (size_t i = 0; i < sums.size(); ++i) lanes[i % 16] += sums[i];
  double total = 0.0;
  for (const double lane : lanes) total += lane;
  return total;
}

// The sums of the softmax weights of the row's blocks into scratch.sums; returns their total.
double sum_row(const Row& row, float scale, SamplingScratch& scratch) {
  scratch.sums.resize(row.maxima().size());
  const int64_t blocks = static_cast<int64_t>(row.maxima().size());
  row.visit_runs(0, blocks, [&](int64_t first, const float* values, int64_t count) {
    softmax_sums(values, count, row.best(), scale, scratch.sums.data() + first);
  });
  return total_of(scratch.sums);
}

// The same, with the weights themselves into scratch.weights.
double weigh_row(const Row& row, float scale, SamplingScratch& scratch) {
  const int64_t blocks = static_cast<int64_t>(row.maxima().size());
  scratch.sums.resize(blocks);
  scratch.weights.resize(blocks * kVocabularyBlock);
  row.visit_runs(0, blocks, [&](int64_t first, const float* values, int64_t count) {
    softmax_weights(values, count, row.best(), scale, scratch.weights.data() + first * kVocabularyBlock,
                    scratch.sums.data() + first);
  });
  return total_of(scratch.sums);
}

// ---------------------------------------------------------------- lists of tokens

// The tokens with a logit of at least `least`.
TokenList gather(const Row& row, float least, SamplingScratch& scratch) {
  const std::vector<float>& maxima = row.maxima();
  scratch.kept_ids.resize(row.size());
  scratch.kept_values.resize(row.size());
  int64_t size = 0;
  for (size_t block = 0; block < maxima.size();) {
    const size_t first = block;
    while (block < maxima.size() && maxima[block] >= least) ++block;
    row.visit_runs(first, block, [&](int64_t index, const float* values, int64_t count) {
      int32_t* found = scratch.kept_ids.data() + size;
      float* found_values = scratch.kept_values.data() + size;
      const int64_t num_found = find_between(values, count, least, kInfinity, found);
      for (int64_t i = 0; i < num_found; ++i) {
        found_values[i] = values[found[i]];
        found[i] += static_cast<int32_t>(index * kVocabularyBlock);
      }
      size += num_found;
    });
    while (block < maxima.size() && !(maxima[block] >= least)) ++block;
  }
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
// is such a logit for certain. Beyond half of the blocks that is far too low, and it is likely that of the
// blocks a share of 1 - exp(-tokens / blocks) has a token that large, as if tokens fell into blocks by
// chance; and where nearly all have one, the first token of each block is a sample of all. Likely means
// four standard errors.
float least_by_count(const Row& row, int64_t count, SamplingScratch& scratch) {
  const int64_t blocks = static_cast<int64_t>(row.maxima().size());
  const double likely = static_cast<double>(count) + 4.0 * std::sqrt(static_cast<double>(count));
  const double share = 1.0 - std::exp(-likely / static_cast<double>(blocks));
  const int64_t with_one = static_cast<int64_t>(share * static_cast<double>(blocks)) + 1;
  if (count <= blocks || share < 0.9) {
    return nth_largest(row.maxima().data(), blocks, std::min(count, with_one), scratch.keys);
  }
  const double expected = static_cast<double>(count) / kVocabularyBlock;
  const int64_t rank = static_cast<int64_t>(expected + 4.0 * std::sqrt(expected)) + 1;
  if (rank > blocks) return -kInfinity;
  std::vector<float> sample(blocks);
  for (int64_t block = 0; block < blocks; ++block) sample[block] = row.block(block)[0];
  return nth_largest(sample.data(), blocks, rank, scratch.keys);
}

// The `count` tokens of largest logit, of those with a logit of at least `least`.
TokenList largest_tokens(const Row& row, int64_t count, float least, SamplingScratch& scratch) {
  const float likely = least_by_count(row, count, scratch);
  TokenList kept = gather(row, std::max(least, likely), scratch);
  if (kept.size < count && likely > least) kept = gather(row, least, scratch);
  keep_first(kept, count, scratch.keys);
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

// Among all tokens of the row, whose sums of weights scratch.sums has.
int32_t draw_from_row(const Row& row, float scale, double total, double uniform,
                      const SamplingScratch& scratch) {
  double target = uniform * total;
  const int64_t block = invert(scratch.sums.data(), static_cast<int64_t>(scratch.sums.size()), target);
  float weights[kVocabularyBlock];
  row.visit_runs(block, block + 1, [&](int64_t, const float* values, int64_t count) {
    double sum;
    softmax_weights(values, count, row.best(), scale, weights, &sum);
  });
  return static_cast<int32_t>(block * kVocabularyBlock + invert(weights, kVocabularyBlock, target));
}

// Among the tokens of scratch.weights that belong to the nucleus, which may be all.
int32_t draw_from_nucleus(const SamplingScratch& scratch, const Nucleus& nucleus, double uniform) {
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

// Of a nucleus that is the greater part, a token of all is one with that chance, and then as good as any that
// is drawn from the nucleus alone (rejection, von Neumann 1951): most rows need not know where it ends.
int32_t draw_by_top_p(double top_p, double total, const SamplerState& state, SamplingScratch& scratch) {
  constexpr double kWorthwhile = 0.5;
  constexpr int kLast = SamplerState::kUniforms - 1;
  int which = 0;
  for (; top_p >= kWorthwhile && which < kLast; ++which) {
    const int32_t token = draw_from_nucleus(scratch, {0.0f, total}, state.uniform(which));
    if (in_nucleus(token, top_p, total, scratch)) return token;
  }
  return draw_from_nucleus(scratch, find_nucleus(top_p, total, scratch), state.uniform(which));
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
      settings.min_p > 0.0 ? least_by_min_p(row.best(), settings.temperature, settings.min_p) : -kInfinity;
  const bool counts = settings.top_k > 0 && settings.top_k < row.size();
  TokenList kept = counts ? largest_tokens(row, settings.top_k, least, scratch)
                          : gather(row, least, scratch);
  scratch.kept_weights.resize(vocabulary_blocks(kept.size) * kVocabularyBlock);
  kept.weights = scratch.kept_weights.data();
  scratch.sums.resize(vocabulary_blocks(kept.size));
  softmax_weights(kept.values, kept.size, row.best(), scale, kept.weights, scratch.sums.data());
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
  if (settings.min_p > 0.0 || (settings.top_k > 0 && settings.top_k < row.size())) {
    return draw_from_list(filtered_tokens(row, settings, scale, scratch), state.uniform());
  }
  if (settings.top_p < 1.0) {
    const double total = weigh_row(row, scale, scratch);
    return draw_by_top_p(settings.top_p, total, state, scratch);
  }
  const double total = sum_row(row, scale, scratch);
  return draw_from_row(row, scale, total, state.uniform(), scratch);
}

Logprobs row_logprobs(const Row& row, int64_t token_id, int32_t count, SamplingScratch& scratch) {
  const double log_total = std::log(sum_row(row, 1.0f, scratch));
  const auto logprob = [&](float logit) {
    return static_cast<double>(logit) - static_cast<double>(row.best()) - log_total;
  };
  Logprobs result;
  result.finite = true;
  result.logprob = logprob(row.at(token_id));
  if (count <= 0) return result;
  const TokenList best = largest_tokens(row, std::min<int64_t>(count, row.size()), -kInfinity, scratch);
  for (int64_t i = 0; i < best.size; ++i) result.top.push_back({best.ids[i], logprob(best.values[i])});
  std::stable_sort(result.top.begin(), result.top.end(),
                   [](const RankedToken& a, const RankedToken& b) { return a.logprob > b.logprob; });
  return result;
}

// The choice among the candidates, without its log probabilities.
Choice choose(const float* logits, const float* tile_maxima, const SamplerState& state,
              SamplingScratch& scratch) {
  const float* candidates = state.candidate_logits(logits, scratch.candidates);
  Row row(candidates, state.num_candidates(), candidates == logits ? tile_maxima : nullptr, scratch.row);
  Choice choice;
  choice.largest = row.best();
  if (choice.largest == -kInfinity && state.has_allowed()) {  // are others of the row finite?
    choice.largest = Row(logits, state.vocab_size(), tile_maxima, scratch.row).best();
    choice.fault = ChoiceFault::no_token;
  }
  if (!std::isfinite(choice.largest)) choice.fault = ChoiceFault::not_finite;
  if (choice.fault != ChoiceFault::none) return choice;
  if (state.adjusts()) {
    state.adjust(row);
    if (row.best() == -kInfinity) {
      choice.fault = ChoiceFault::no_token;
      return choice;
    }
  }
  const bool greedy = state.settings().temperature == 0.0;
  choice.token_id = state.candidate(greedy ? row.first_best() : draw(row, state, scratch));
  return choice;
}

Logprobs model_logprobs(const Row& row, int64_t token_id, int32_t count, SamplingScratch& scratch) {
  if (!std::isfinite(row.best())) return {};
  return row_logprobs(row, token_id, count, scratch);
}

}  // namespace

Choice sample_row(const float* logits, const float* tile_maxima, SamplerState& state,
                  SamplingScratch& scratch) {
  Choice choice = choose(logits, tile_maxima, state, scratch);
  if (choice.fault != ChoiceFault::none) return choice;
  const int32_t count = state.settings().logprobs;
  if (count >= 0) {  // of the model's own distribution
    const Row row(logits, state.vocab_size(), tile_maxima, scratch.row);
    choice.logprobs = model_logprobs(row, choice.token_id, count, scratch);
    if (!choice.logprobs->finite) {  // a token that is not allowed is to blame
      return {ChoiceFault::not_finite, -1, row.best(), {}};
    }
  }
  state.append(choice.token_id);
  return choice;
}

Logprobs token_logprobs(const float* logits, int64_t vocab_size, int64_t token_id, int32_t count,
                        SamplingScratch& scratch) {
  return model_logprobs(Row(logits, vocab_size, nullptr, scratch.row), token_id, count, scratch);
}

}  // namespace gristmill
