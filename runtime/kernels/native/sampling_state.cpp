// What the sampler remembers of one completion: its tokens so far and its stream of random numbers.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampling.hpp"

namespace gristmill {
namespace {

__extension__ using Uint128 = unsigned __int128;

// The first of the four numbers that Philox4x64-10 (Salmon et al. 2011) makes of a counter and a key.
uint64_t philox(uint64_t counter, uint64_t key0, uint64_t key1) {
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
  return x0;
}

}  // namespace

bool SamplingSettings::has_penalties() const {
  return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
}

SamplerState::SamplerState(const SamplingSettings& settings, uint64_t seed, uint64_t completion,
                           int64_t vocab_size, const std::vector<int64_t>& prompt_token_ids,
                           const std::vector<int64_t>& end_token_ids,
                           const std::vector<std::pair<int64_t, double>>& logit_bias)
    : settings_(settings),
      seed_(seed),
      completion_(completion),
      vocab_size_(vocab_size),
      position_(static_cast<int64_t>(prompt_token_ids.size())),
      has_bias_(!logit_bias.empty()) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("vocab_size " + std::to_string(vocab_size) + " is invalid");
  }
  for (const int64_t token_id : end_token_ids) {
    if (token_id >= 0 && token_id < vocab_size) touch(token_id).ends = true;
  }
  for (const auto& [token_id, bias] : logit_bias) touch(token_id).bias += bias;
  if (!settings_.has_penalties()) return;
  for (const int64_t token_id : prompt_token_ids) touch(token_id).seen = true;
}

SamplerState::Touched& SamplerState::touch(int64_t token_id) {
  if (token_id < 0 || token_id >= vocab_size_) {
    throw std::invalid_argument("token id " + std::to_string(token_id) + " is outside the vocabulary of " +
                                std::to_string(vocab_size_));
  }
  const auto [place, is_new] = places_.try_emplace(static_cast<int32_t>(token_id), touched_.size());
  if (is_new) {
    touched_.emplace_back();
    touched_.back().token_id = static_cast<int32_t>(token_id);
  }
  return touched_[place->second];
}

void SamplerState::append(int64_t token_id) {
  if (settings_.has_penalties()) {
    Touched& token = touch(token_id);
    ++token.count;
    token.seen = true;
  }
  ++position_;
  ++num_output_;
}

double SamplerState::uniform() const {
  // The generator counts before it draws, as NumPy's does.
  const uint64_t bits = philox(static_cast<uint64_t>(position_) + 1, seed_, completion_);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool SamplerState::adjusts() const { return too_short() || has_bias_ || settings_.has_penalties(); }

void SamplerState::adjust(float* logits) const {
  for (const Touched& token : touched_) logits[token.token_id] = adjusted(logits[token.token_id], token);
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
