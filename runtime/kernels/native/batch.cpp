#include "batch.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace gristmill {
namespace {

constexpr int kItemsPerThread = 4;
constexpr int kFewPassRows = 12;  // smaller passes read keys and values too often

void require(bool holds, const char* what, int64_t found) {
  if (!holds) throw std::invalid_argument(std::string(what) + ": " + std::to_string(found));
}

void check_sequence(const StepInput& input, int s, const Model& model, int num_blocks, int block_size) {
  const int64_t start = input.starts[s], length = input.lengths[s];
  require(length > 0, "a sequence without new tokens", s);
  require(start >= 0 && start + length <= model.max_positions, "position beyond the plan", start + length);
  const int64_t first = input.table_starts[s], last = input.table_starts[s + 1];
  require(first >= 0 && first <= last && last <= input.blocks, "block table outside the block ids, sequence", s);
  require((last - first) * block_size >= start + length, "block table too short, sequence", s);
  for (int i = input.table_starts[s]; i < input.table_starts[s + 1]; ++i) {
    require(input.block_ids[i] >= 0 && input.block_ids[i] < num_blocks, "block outside the cache",
            input.block_ids[i]);
  }
}

int spans_until(int position) { return position / kSpanTokens + 1; }

int first_span(const Attention& attention, int position) {
  return attention.window == 0 ? 0 : std::max(0, position - attention.window + 1) / kSpanTokens;
}

// One item a span, with room for each row's partial state.
void split_item(const AttendItem& whole, AttendPlan& plan) {
  const int rows = whole.heads * whole.tokens;
  plan.merges.push_back({whole, whole.last_span - whole.first_span});
  plan.merges.back().item.partial = plan.partials;
  for (int span = whole.first_span; span < whole.last_span; ++span) {
    AttendItem part = whole;
    part.first_span = span;
    part.last_span = span + 1;
    part.partial = plan.partials;
    plan.partials += rows;
    plan.items.push_back(part);
  }
}

// Tokens of a sequence from `token` on that share a pass. Several units of them end where a unit ends: what
// the pass reads and some of its rows don't see is then the least.
int pass_tokens(const Batch& batch, int sequence, int token, int most) {
  const int rest = batch.input.lengths[sequence] - token;
  const int position = batch.input.starts[sequence] + token;
  if (most >= kUnitTokens) most = (position + most) / kUnitTokens * kUnitTokens - position;
  return std::min(most, rest);
}

// The passes of a sequence that read one kv head, the longest first: the last ones that threads take are
// short.
void add_passes(const Batch& batch, const Attention& attention, int sequence, int kv_head, int rows,
                AttendPlan& plan) {
  const int group = attention.num_heads / attention.num_kv_heads;
  const int heads = std::min(group, kMostAttendRows), most = std::max(1, rows / group);
  const size_t start = plan.items.size();
  for (int token = 0, tokens; token < batch.input.lengths[sequence]; token += tokens) {
    tokens = pass_tokens(batch, sequence, token, most);
    const int first = batch.first_tokens[sequence] + token;
    for (int head = 0; head < group; head += heads) {
      plan.items.push_back({sequence, kv_head, kv_head * group + head, std::min(heads, group - head), first,
                            tokens, first_span(attention, batch.positions[first]),
                            spans_until(batch.positions[first + tokens - 1]), -1});
    }
  }
  std::reverse(plan.items.begin() + start, plan.items.end());
}

}  // namespace

void lay_out(const StepInput& input, const Model& model, int num_blocks, int block_size, Batch& batch) {
  batch.input = input;
  batch.positions.clear();
  batch.first_tokens.clear();
  batch.units.clear();
  batch.unit_starts.clear();
  batch.appends.clear();
  const int units_per_block = block_size / kUnitTokens;
  for (int s = 0; s < input.sequences; ++s) {
    check_sequence(input, s, model, num_blocks, block_size);
    batch.first_tokens.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.unit_starts.push_back(static_cast<int32_t>(batch.units.size()));
    const int32_t* table = input.block_ids + input.table_starts[s];
    const auto unit_of = [&](int u) { return table[u / units_per_block] * units_per_block + u % units_per_block; };
    for (int i = 0; i < input.lengths[s]; ++i) {
      const int position = input.starts[s] + i;
      const int token = static_cast<int>(batch.positions.size());
      if (i == 0 || position % kUnitTokens == 0) batch.appends.push_back({token, 0, unit_of(position / kUnitTokens)});
      ++batch.appends.back().tokens;
      batch.positions.push_back(position);
    }
    const int units = (input.starts[s] + input.lengths[s] - 1) / kUnitTokens + 1;
    for (int u = 0; u < units; ++u) batch.units.push_back(unit_of(u));
  }
  require(static_cast<int>(batch.positions.size()) == input.tokens, "tokens of all sequences", input.tokens);
  for (int t = 0; t < input.tokens; ++t) {
    require(input.token_ids[t] >= 0 && input.token_ids[t] < model.vocab_size, "token id outside the vocabulary",
            input.token_ids[t]);
  }
  require(input.rows <= input.tokens, "more logit rows than tokens", input.rows);
  for (int r = 0; r < input.rows; ++r) {
    require(input.logit_rows[r] >= 0 && input.logit_rows[r] < input.tokens, "logit row", input.logit_rows[r]);
  }
}

AttendPlan plan_attention(const Batch& batch, const Attention& attention, int rows, int threads) {
  AttendPlan plan;
  do {
    plan.items.clear();
    for (int s = 0; s < batch.input.sequences; ++s) {
      for (int head = 0; head < attention.num_kv_heads; ++head) {
        add_passes(batch, attention, s, head, rows, plan);
      }
    }
    if (static_cast<int>(plan.items.size()) >= kItemsPerThread * threads || threads == 1) return plan;
    rows /= 2;
  } while (rows >= kFewPassRows);
  std::vector<AttendItem> whole;
  whole.swap(plan.items);
  for (const AttendItem& item : whole) {
    if (item.last_span - item.first_span > 1) {
      split_item(item, plan);
    } else {
      plan.items.push_back(item);
    }
  }
  return plan;
}

}  // namespace gristmill
