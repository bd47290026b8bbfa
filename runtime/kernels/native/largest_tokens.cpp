// The most probable tokens of a list: histograms that close in on the last value to keep.
#include "largest_tokens.hpp"

#include <algorithm>
#include <cstring>

#include "vocabulary_passes.hpp"

namespace gristmill {
namespace {

constexpr int kBucketBits = 10;

struct Member {
  uint32_t key;
  float weight;
};

// Everything above `key` is kept, and the first `num_equal` tokens of just that key.
struct Cut {
  uint32_t key;
  int64_t num_equal;
};

// Whole numbers in the order of the floats; both zeros are one.
uint32_t order_key(float value) {
  const float merged = value + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &merged, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int bit_width(uint32_t value) {
  int width = 0;
  for (; value != 0; value >>= 1) ++width;
  return width;
}

int64_t count_equal(const std::vector<Member>& equal, double above, double target) {
  int64_t count = 0;
  for (const Member& member : equal) {
    if (above >= target) break;
    above += member.weight;
    ++count;
  }
  return count;
}

Cut find_cut(std::vector<Member>& members, double target) {
  const auto [least, most] = std::minmax_element(
      members.begin(), members.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
  uint32_t low = least->key;
  uint32_t range = most->key - low;
  double above = 0.0;
  std::vector<double> buckets;
  while (range > 0) {
    const int shift = std::max(0, bit_width(range) - kBucketBits);
    buckets.assign((range >> shift) + 1, 0.0);
    for (const Member& member : members) buckets[(member.key - low) >> shift] += member.weight;
    uint32_t bucket = range >> shift;
    for (; bucket > 0 && above + buckets[bucket] < target; --bucket) above += buckets[bucket];
    const auto outside = [&](const Member& member) { return (member.key - low) >> shift != bucket; };
    members.erase(std::remove_if(members.begin(), members.end(), outside), members.end());
    low += bucket << shift;
    range = (1u << shift) - 1;
  }
  return {low, count_equal(members, above, target)};
}

}  // namespace

void keep_largest(TokenList& tokens, double target) {
  if (tokens.size == 0) return;
  std::vector<Member> members(static_cast<size_t>(tokens.size));
  for (int64_t i = 0; i < tokens.size; ++i) {
    members[i] = {order_key(tokens.values[i]), tokens.weights[i]};
  }
  const Cut cut = find_cut(members, target);
  int64_t kept = 0;
  int64_t num_equal = 0;
  for (int64_t i = 0; i < tokens.size; ++i) {
    const uint32_t key = order_key(tokens.values[i]);
    if (key < cut.key || (key == cut.key && num_equal++ >= cut.num_equal)) continue;
    tokens.ids[kept] = tokens.ids[i];
    tokens.values[kept] = tokens.values[i];
    tokens.weights[kept] = tokens.weights[i];
    ++kept;
  }
  tokens.size = kept;
}

float nth_largest(const float* values, int64_t size, int64_t rank, std::vector<int32_t>& keys) {
  keys.resize(size);
  order_keys(values, size, keys.data());
  int32_t lowest = keys[0], highest = keys[0];
  for (const int32_t key : keys) {
    lowest = std::min(lowest, key);
    highest = std::max(highest, key);
  }
  int64_t least = lowest;  // at least `rank` keys reach it, and fewer reach `end`
  int64_t end = static_cast<int64_t>(highest) + 1;
  while (end - least > 1) {
    const int64_t middle = least + (end - least) / 2;
    (count_keys(keys.data(), size, static_cast<int32_t>(middle)) >= rank ? least : end) = middle;
  }
  return value_of_key(static_cast<int32_t>(least));
}

void keep_first(TokenList& tokens, int64_t count, std::vector<int32_t>& keys) {
  if (count >= tokens.size) return;
  const float least = nth_largest(tokens.values, tokens.size, count, keys);
  int64_t num_equal = count;
  for (int64_t i = 0; i < tokens.size; ++i) num_equal -= tokens.values[i] > least;
  int64_t kept = 0;
  for (int64_t i = 0; i < tokens.size; ++i) {
    const float value = tokens.values[i];
    const int64_t is_equal = value == least;
    tokens.ids[kept] = tokens.ids[i];
    tokens.values[kept] = value;
    kept += static_cast<int64_t>(value > least) | (is_equal & static_cast<int64_t>(num_equal > 0));
    num_equal -= is_equal;
  }
  tokens.size = kept;
}

}  // namespace gristmill
