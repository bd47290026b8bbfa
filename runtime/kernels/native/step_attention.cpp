// The step's attention: keys and values into the cache, then passes over the block tables.
#include "step.hpp"

#include <algorithm>
#include <cmath>

namespace gristmill {
namespace {

// What will be written is on its way from memory meanwhile.
void ask_for(const uint8_t* unit, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(unit + i, 1);
}

}  // namespace

// Queries and keys are normed and rotated in place, for a quantized cache a second time; keys and values
// go into their units. All of a step's tokens are appended before any of them attends.
void Step::append(int thread, int index) {
  const Attention& attention = model_.layers[index].attention;
  const int dim = attention.head_dim, heads = attention.num_heads, kv_heads = attention.num_kv_heads;
  const bool turned = rotates_keys(cache_.layout(index, 0).type);
  const int half = attention.rope < 0 ? 0 : static_cast<int>(model_.ropes[attention.rope].inv_freq.size());
  for (int i; (i = pool_.claim(thread, static_cast<int>(batch_->appends.size()))) >= 0;) {
    const AppendRun& run = batch_->appends[i];
    for (int h = 0; h < kv_heads; ++h) ask_for(cache_.unit(index, run.unit, h), cache_.layout(index, h).unit_bytes);
    for (int t = run.first_token; t < run.first_token + run.tokens; ++t) {
      float* row = space_.qkv.as<float>() + t * qkv_stride_;
      const float* cos = half > 0 ? angles_.at(attention.rope, batch_->positions[t]) : nullptr;
      for (int h = 0; h < heads + kv_heads; ++h) {
        const Norm& norm = h < heads ? attention.q_norm : attention.k_norm;
        if (norm.weight != nullptr) kernels_.rms_norm(row + h * dim, norm.weight, norm.eps, dim, row + h * dim);
        if (half > 0) kernels_.rotate(row + h * dim, cos, cos + half, 2 * half);
        if (turned) kernels_.hadamard(row + h * dim, dim);
      }
    }
    const float* keys = space_.qkv.as<float>() + run.first_token * qkv_stride_ + heads * dim;
    for (int h = 0; h < kv_heads; ++h) {
      kernels_.append(cache_.layout(index, h), cache_.unit(index, run.unit, h),
                      batch_->positions[run.first_token] % kUnitTokens, run.tokens, keys + h * dim,
                      keys + (kv_heads + h) * dim, qkv_stride_);
    }
  }
}

void Step::attend(int thread, int index) {
  const AttendPlan& plan = plans_[plan_of_[index]];
  for (int i; (i = pool_.claim(thread, static_cast<int>(plan.items.size()))) >= 0;) {
    attend_item(thread, index, plan.items[i]);
  }
  if (plan.merges.empty()) return;
  pool_.finish(thread);
  for (int i; (i = pool_.claim(thread, static_cast<int>(plan.merges.size()))) >= 0;) {
    merge_item(thread, index, plan.merges[i]);
  }
}

void Step::attend_item(int thread, int index, const AttendItem& item) {
  ThreadSpace& own = space_.threads[thread];
  const Attention& attention = model_.layers[index].attention;
  const KvLayout& layout = cache_.layout(index, item.kv_head);
  const int dim = layout.padded_dim, rows = item.heads * item.tokens;
  const float* queries[kMostAttendRows];
  float* outs[kMostAttendRows];
  int32_t positions[kMostAttendRows];
  AttendState fresh[kMostAttendRows], total[kMostAttendRows];
  float* weighted = own.states.as<float>();
  float* partial = space_.partials.as<float>() + static_cast<int64_t>(std::max(item.partial, 0)) * (2 + dim);
  for (int r = 0; r < rows; ++r) {
    const int64_t token = item.first_token + r / item.heads;
    const int head = item.first_head + r % item.heads;
    queries[r] = space_.qkv.as<float>() + token * qkv_stride_ + head * attention.head_dim;
    outs[r] = space_.attended.as<float>() + token * attended_stride_ + head * attention.head_dim;
    positions[r] = batch_->positions[token];
    fresh[r].weighted = item.partial >= 0 ? partial + r * (2 + dim) + 2 : weighted + (rows + r) * dim;
    total[r].weighted = weighted + r * dim;
  }
  const int32_t* units = batch_->units.data() + batch_->unit_starts[item.sequence];
  const int last_unit = positions[rows - 1] / kUnitTokens;
  own.units.resize(last_unit + 1);
  for (int u = item.first_span * (kSpanTokens / kUnitTokens); u <= last_unit; ++u) {
    own.units[u] = cache_.unit(index, units[u], item.kv_head);
  }
  const AttendRows pass{layout, own.units.data(), rows, queries, positions, attention.window, attention.scale,
                        attention.softcap};
  if (item.partial >= 0) {
    kernels_.attend_span(pass, item.first_span, fresh);
    for (int r = 0; r < rows; ++r) {
      fresh[r].weighted[-2] = fresh[r].maximum;
      fresh[r].weighted[-1] = fresh[r].sum;
    }
    return;
  }
  kernels_.attend_span(pass, item.first_span, total);
  for (int span = item.first_span + 1; span < item.last_span; ++span) {
    kernels_.attend_span(pass, span, fresh);
    for (int r = 0; r < rows; ++r) kernels_.merge_state(total[r], fresh[r], dim);
  }
  for (int r = 0; r < rows; ++r) kernels_.finish_state(total[r], attention.head_dim, outs[r]);
}

void Step::merge_item(int thread, int index, const MergeItem& merge) {
  const AttendItem& item = merge.item;
  const Attention& attention = model_.layers[index].attention;
  const int dim = cache_.layout(index, item.kv_head).padded_dim, rows = item.heads * item.tokens;
  float* weighted = space_.threads[thread].states.as<float>();
  for (int r = 0; r < rows; ++r) {
    AttendState total{-INFINITY, 0.0f, weighted};
    std::fill(weighted, weighted + dim, 0.0f);
    for (int span = 0; span < merge.spans; ++span) {
      float* partial = space_.partials.as<float>() +
                       (item.partial + static_cast<int64_t>(span) * rows + r) * (2 + dim);
      kernels_.merge_state(total, {partial[0], partial[1], partial + 2}, dim);
    }
    const int64_t token = item.first_token + r / item.heads;
    const int head = item.first_head + r % item.heads;
    kernels_.finish_state(total, attention.head_dim,
                          space_.attended.as<float>() + token * attended_stride_ + head * attention.head_dim);
  }
}

}  // namespace gristmill
