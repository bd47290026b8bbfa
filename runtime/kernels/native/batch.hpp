// One step's input, and how it is laid out for the layers.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace gristmill {

// A mixed batch. Sequence s has lengths[s] new tokens from position starts[s]; its block table is
// block_ids[table_starts[s] .. table_starts[s + 1]). logit_rows are indices of flattened tokens.
struct StepInput {
  const int32_t* token_ids;
  const int32_t* starts;
  const int32_t* lengths;
  const int32_t* block_ids;
  const int32_t* table_starts;
  const int32_t* logit_rows;
  int32_t sequences;
  int32_t tokens;
  int32_t rows;
  int32_t blocks;
};

// Rows of one attention pass: `tokens` new tokens of a sequence from `first_token` (flattened), query
// heads `first_head` .. + heads, which share kv head `kv_head`; spans `first_span` .. `last_span` - 1.
struct AttendItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_head;
  int32_t heads;
  int32_t first_token;
  int32_t tokens;
  int32_t first_span;
  int32_t last_span;
  int32_t partial;  // index of its first state among the split ones; -1: finished at once
};

// Items whose spans were split over threads: `spans` partial states a row follow each other.
struct MergeItem {
  AttendItem item;
  int32_t spans;
};

struct AttendPlan {
  std::vector<AttendItem> items;
  std::vector<MergeItem> merges;
  int32_t partials = 0;  // states
};

// Consecutive tokens (flattened) that go into one cache unit: one thread appends them, since neighbours
// may share a byte.
struct AppendRun {
  int32_t first_token;
  int32_t tokens;
  int32_t unit;
};

struct Batch {
  StepInput input;
  std::vector<int32_t> positions;     // of each flattened token
  std::vector<int32_t> first_tokens;  // of each sequence, flattened
  std::vector<int32_t> units;         // cache units of all sequences, in order of position
  std::vector<int32_t> unit_starts;   // of each sequence in `units`
  std::vector<AppendRun> appends;
};

// Throws std::invalid_argument for a token, position or block outside the model or the cache.
void lay_out(const StepInput& input, const Model& model, int num_blocks, int block_size, Batch& batch);

// How a layer's attention is split into passes, of up to `rows` rows (or one token's heads) where that leaves
// enough of them to all threads. Which rows share a pass and which thread takes which span does not change a
// bit of the result.
AttendPlan plan_attention(const Batch& batch, const Attention& attention, int rows, int threads);

}  // namespace gristmill
