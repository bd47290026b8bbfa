// Choosing tokens from rows of logits.
//
// A row's choice is a pure function of its logits, its settings and its history, to the bit. The order
// of operations is vLLM's: allowed tokens, bad words, minimum length, logit bias, penalties; then
// temperature, min-p, top-k, top-p.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bad_words.hpp"
#include "candidate_row.hpp"

namespace gristmill {

struct SamplingSettings {
  double temperature;  // 0 takes the most probable token
  int64_t top_k;       // 0 or less is off
  double top_p;        // 1 is off
  double min_p;        // 0 is off
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  int64_t min_tokens;
  int32_t logprobs;    // how many of the best to report; negative for no report at all

  bool has_penalties() const;
};

// What a completion is told about single tokens.
struct TokenRules {
  std::vector<int64_t> end_token_ids;  // not before min_tokens
  std::vector<std::pair<int64_t, double>> logit_bias;
  std::vector<std::vector<int64_t>> bad_words;
  std::optional<std::vector<int64_t>> allowed_token_ids;  // nothing else is chosen, end tokens included
};

// Settings and history of one completion. Its candidates are the allowed tokens, or without such a rule
// the whole vocabulary, in order of their ids.
class SamplerState {
 public:
  // Throws std::invalid_argument for a token id outside the vocabulary, but for end tokens, which
  // then can't be chosen anyhow.
  SamplerState(const SamplingSettings& settings, uint64_t seed, uint64_t completion, int64_t vocab_size,
               const std::vector<int64_t>& prompt_token_ids, const TokenRules& rules);

  const SamplingSettings& settings() const { return settings_; }
  int64_t vocab_size() const { return vocab_size_; }
  bool has_allowed() const { return allowed_.has_value(); }
  int64_t num_candidates() const;
  int32_t candidate(int64_t place) const;

  // The logits of the candidates: the row itself, or a copy of the allowed ones in `memory`.
  const float* candidate_logits(const float* logits, std::vector<float>& memory) const;

  // Add the token that was chosen.
  void append(int64_t token_id);

  // Numbers in [0, 1) that depend on the seed, the completion and the position alone.
  static constexpr int kUniforms = 4;
  double uniform(int which = 0) const;

  // True when `adjust` has something to change.
  bool adjusts() const;

  // Changes the candidates' logits. Each value is computed in float64 and rounded once.
  void adjust(CandidateRow& row) const;

 private:
  struct Touched {
    int64_t place;  // among the candidates
    int32_t count = 0;  // times it was chosen
    bool seen = false;  // in the prompt or the output
    bool ends = false;
    double bias = 0.0;
  };

  void set_allowed(const std::vector<int64_t>& token_ids);
  void check(int64_t token_id) const;
  int64_t place_of(int64_t token_id) const;  // among the candidates; -1 if it is none
  Touched* touch(int64_t token_id);          // null for a token that is no candidate
  float adjusted(float logit, const Touched& token) const;
  bool too_short() const { return num_output_ < settings_.min_tokens; }

  SamplingSettings settings_;
  uint64_t seed_;
  uint64_t completion_;
  int64_t vocab_size_;
  int64_t position_;
  int64_t num_output_ = 0;
  bool has_bias_;
  std::optional<std::vector<int32_t>> allowed_;  // sorted
  BadWords bad_words_;
  std::vector<Touched> touched_;
  std::unordered_map<int32_t, std::size_t> places_;  // of token ids in touched_
};

struct RankedToken {
  int32_t token_id;
  double logprob;
};

struct Logprobs {
  bool finite = false;  // without, a logit is not a number or the largest is infinite: no report
  double logprob = 0.0;
  std::vector<RankedToken> top;  // best first, ties by token id
};

enum class ChoiceFault : int32_t {
  none = 0,
  not_finite = 1,  // a logit is not a number, or the largest is infinite
  no_token = 2,    // the settings leave no token to choose
};

struct Choice {
  ChoiceFault fault = ChoiceFault::none;
  int32_t token_id = -1;  // and only -1 with a fault
  float largest = 0.0f;  // what is not finite, if that is the fault
  std::optional<Logprobs> logprobs;  // if asked for
};

// Memory for one row's work, grown as rows need it.
struct SamplingScratch {
  RowMemory row;
  std::vector<float> candidates, weights, kept_values, kept_weights;
  std::vector<double> sums;
  std::vector<int32_t> kept_ids, keys;
};

// Chooses a token and, unless there is a fault, records it in `state`. `tile_maxima` are those of the row
// as tile_maxima() finds them, or null; the choice is the same.
Choice sample_row(const float* logits, const float* tile_maxima, SamplerState& state,
                  SamplingScratch& scratch);

// The log probability of `token_id` and the `count` most probable tokens.
Logprobs token_logprobs(const float* logits, int64_t vocab_size, int64_t token_id, int32_t count,
                        SamplingScratch& scratch);

}  // namespace gristmill
