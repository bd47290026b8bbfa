// What the sampler remembers of one completion: its tokens so far and its stream of random numbers.
#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampling.hpp"

namespace gristmill {
namespace {

__extension__ using Uint128 = unsigned __int128;

// The four numbers that Philox4x64-10 (Salmon et al. 2011) makes of a counter and a key.
std::array<uint64_t, SamplerState::kUniforms> philox(uint64_t counter, uint64_t key0, uint64_t key1) {
  uint64_t x0 = counter, x1 = 0, x2 = 0, x3 = 0;
  for (int round = 0; round < 10; ++round) {
    const Uint128 left = static_cast<Uint128>(0xD2E7470EE14C6C93u) * x0;
    const Uint128 right = static_cast<Uint128>(0xCA5A826395121157u) * x2;
    x0 = static_cast<uint64_t>(right >> 64) ^ x1 ^ key0;
    x1 = static_cast<uint64_t>(right);
    x2 = static_cast<uint64_t>(left >> 64) ^ x3 ^ key1;
    x3 = static_cast<uint64_t>(left);
    key0 += 0x9E3779B97F4A7C15u;
    key1 += 0xBB67AE8584CAA73Bu;
  }
  return {x0, x1, x2, x3};
}

}  // namespace

bool SamplingSettings::has_penalties() const {
  return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
}

SamplerState::SamplerState(const SamplingSettings& settings, uint64_t seed, uint64_t completion,
                           int64_t vocab_size, const std::vector<int64_t>& prompt_token_ids,
                           const TokenRules& rules)
    : settings_(settings),
      seed_(seed),
      completion_(completion),
      vocab_size_(vocab_size),
      position_(static_cast<int64_t>(prompt_token_ids.size())),
      has_bias_(!rules.logit_bias.empty()),
      bad_words_(rules.bad_words) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("vocab_size " + std::to_string(vocab_size) + " is invalid");
  }
  if (rules.allowed_token_ids) set_allowed(*rules.allowed_token_ids);
  for (const std::vector<int64_t>& word : rules.bad_words) {
    for (const int64_t token_id : word) check(token_id);
  }
  for (const int64_t token_id : rules.end_token_ids) {
    if (token_id < 0 || token_id >= vocab_size) continue;
    if (Touched* token = touch(token_id)) token->ends = true;
  }
  for (const auto& [token_id, bias] : rules.logit_bias) {
    if (Touched* token = touch(token_id)) token->bias += bias;
  }
  if (!settings_.has_penalties()) return;
  for (const int64_t token_id : prompt_token_ids) {
    if (Touched* token = touch(token_id)) token->seen = true;
  }
}

void SamplerState::set_allowed(const std::vector<int64_t>& token_ids) {
  for (const int64_t token_id : token_ids) check(token_id);
  allowed_.emplace(token_ids.begin(), token_ids.end());
  std::sort(allowed_->begin(), allowed_->end());
  allowed_->erase(std::unique(allowed_->begin(), allowed_->end()), allowed_->end());
}

void SamplerState::check(int64_t token_id) const {
  if (token_id >= 0 && token_id < vocab_size_) return;
  throw std::invalid_argument("token id " + std::to_string(token_id) + " is outside the vocabulary of " +
                              std::to_string(vocab_size_));
}

int64_t SamplerState::num_candidates() const {
  return allowed_ ? static_cast<int64_t>(allowed_->size()) : vocab_size_;
}

int32_t SamplerState::candidate(int64_t place) const {
  return allowed_ ? (*allowed_)[place] : static_cast<int32_t>(place);
}

int64_t SamplerState::place_of(int64_t token_id) const {
  if (!allowed_) return token_id;
  const auto found = std::lower_bound(allowed_->begin(), allowed_->end(), token_id);
  return found != allowed_->end() && *found == token_id ? found - allowed_->begin() : -1;
}

const float* SamplerState::candidate_logits(const float* logits, std::vector<float>& memory) const {
  if (!allowed_) return logits;
  memory.resize(allowed_->size());
  std::transform(allowed_->begin(), allowed_->end(), memory.begin(),
                 [logits](int32_t token_id) { return logits[token_id]; });
  return memory.data();
}

SamplerState::Touched* SamplerState::touch(int64_t token_id) {
  check(token_id);
  const int64_t place = place_of(token_id);
  if (place < 0) return nullptr;
  const auto [found, is_new] = places_.try_emplace(static_cast<int32_t>(token_id), touched_.size());
  if (is_new) {
    touched_.emplace_back();
    touched_.back().place = place;
  }
  return &touched_[found->second];
}

void SamplerState::append(int64_t token_id) {
  if (settings_.has_penalties()) {
    if (Touched* token = touch(token_id)) {
      ++token->count;
      token->seen = true;
    }
  }
  bad_words_.append(token_id);
  ++position_;
  ++num_output_;
}

double SamplerState::uniform(int which) const {
  // The generator counts before it draws, as NumPy's does.
  const uint64_t bits = philox(static_cast<uint64_t>(position_) + 1, seed_, completion_)[which];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool SamplerState::adjusts() const {
  return too_short() || has_bias_ || settings_.has_penalties() || !bad_words_.empty();
}

void SamplerState::adjust(CandidateRow& row) const {
  row.begin_changes();
  for (const Touched& token : touched_) {
    float& logit = row.change(token.place);
    logit = adjusted(logit, token);
  }
  bad_words_.visit([&](int64_t token_id) {  // last, as nothing lifts a token from -infinity
    const int64_t place = place_of(token_id);
    if (place >= 0) row.change(place) = -std::numeric_limits<float>::infinity();
  });
  row.end_changes();
}

// Repetition (CTRL, Keskar et al. 2019) counts prompt and output, the other penalties the output alone.
float SamplerState::adjusted(float logit, const Touched& token) const {
  constexpr double kMost = std::numeric_limits<float>::max();
  double value = logit;
  if (token.ends && too_short()) value = -std::numeric_limits<double>::infinity();
  value += token.bias;
  if (token.seen) {
    value = value > 0.0 ? value / settings_.repetition_penalty : value * settings_.repetition_penalty;
  }
  value -= settings_.frequency_penalty * token.count;
  value -= settings_.presence_penalty * (token.count > 0 ? 1.0 : 0.0);
  if (value < -kMost) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(value < kMost ? value : kMost);
}

}  // namespace gristmill
