// A mixture of experts: each token goes through those that the router chooses, and their outputs add up.
//
// Tokens are gathered by expert, so that an expert's weights are read once a step. A token's result is
// the same bits whatever else its experts are given: linears do not mix tokens, and the outputs are
// added in the order of the experts' numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "linear_share.hpp"
#include "step.hpp"

namespace gristmill {
namespace {

constexpr int kChosenTogether = 8;        // up to here one thread chooses the experts of all tokens
constexpr int64_t kMostClaims = 1 << 19;  // of one round: the pool counts in 20 bits
constexpr int64_t kSpareTokens = 32;      // of an expert's panels: padding of the last, and to whole lines

// How far panels of all experts reach in the memory that they share, in bytes and in scales.
struct PanelEnds {
  int64_t values = 0, scales = 0;
};

int64_t round_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

ExpertLinear lay_out(const KernelTable& kernels, bool integer_activations, const Linear& linear, int rows,
                     int threads, const Panels& panels, PanelEnds& ends, int64_t& shares) {
  Activations x = describe(kernels, integer_activations, linear.weight, rows);
  x.values = panels.values.as<uint8_t>() + ends.values;
  x.scales = panels.scales.as<float>() + ends.scales;
  x.sums = panels.sums.as<int32_t>() + ends.scales;
  const int64_t numbers = static_cast<int64_t>((x.panels - 1) * x.panel + x.last) * x.columns;
  ends.values += round_up(numbers * value_bytes(x.form), 64);
  ends.scales += round_up(numbers / kActivationGroup, 16);
  const Share share = share_of(kernels, linear, x, threads);
  const int64_t first = shares;
  shares += count_shares(share, linear.tiles(), x);
  return {&linear, x, share, first};
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

void Step::measure_mixture(const Mixture& mixture) {
  most_experts_ = std::max<int64_t>(most_experts_, mixture.experts.size());
  most_passes_ = std::max<int64_t>(most_passes_, mixture.passes());
  logits_stride_ = std::max<int64_t>(logits_stride_, round_up(mixture.router.out_features, 16));
  for (const Expert& expert : mixture.experts) {
    expert_stride_ = std::max<int64_t>(expert_stride_, expert.down.weight.columns);
  }
}

void Step::reserve_mixture(int64_t tokens) {
  if (most_experts_ == 0) return;
  MixtureSpace& space = space_.mixture;
  const int64_t rows = byte_count({tokens, most_passes_});
  space.normed.reserve(byte_count({tokens, hidden_stride_, 4}));
  space.logits.reserve(byte_count({tokens, logits_stride_, 4}));
  for (Buffer* each : {&space.chosen, &space.weights, &space.token_rows, &space.row_tokens}) {
    each->reserve(rows * 4);
  }
  space.gated.reserve(byte_count({rows, expert_stride_, 4}));
  space.outputs.reserve(byte_count({rows, hidden_stride_, 4}));
  space.panels.reserve(rows + kSpareTokens * std::min(rows, most_experts_),
                       std::max(hidden_stride_, expert_stride_));
  space.next_rows.resize(most_experts_);
  space.work.reserve(most_experts_);
  for (ThreadSpace& own : space_.threads) own.choice.reserve(most_experts_ * 8);
}

void Step::mix(int thread, const Layer& layer) {
  MixtureSpace& space = space_.mixture;
  route(thread, layer);
  fill_experts(thread, &ExpertWork::gate_up);
  multiply_experts(thread, &ExpertWork::gate_up, space.gate_up_shares, [&](const ExpertWork& work) {
    const Expert& expert = *work.expert;
    float* gated = space.gated.as<float>() + work.first_row * expert_stride_;
    return Sink{Finish::gate, expert.gate_up.bias, nullptr, expert.activation, expert.intermediate_size, gated,
                expert_stride_, {}};
  });
  next(thread, Operation::experts_gate_up);
  fill_experts(thread, &ExpertWork::down);
  multiply_experts(thread, &ExpertWork::down, space.down_shares, [&](const ExpertWork& work) {
    return row_sink(work.expert->down, false, space.outputs.as<float>() + work.first_row * hidden_stride_, hidden_stride_);
  });
  next(thread, Operation::experts_down);
  sum_experts(thread, *layer.mixture);
  next(thread, Operation::experts_sum);
}

// The experts of every token, and the work that this makes for each of them.
void Step::route(int thread, const Layer& layer) {
  const Mixture& mixture = *layer.mixture;
  const int tokens = batch_->input.tokens;
  float* normed = space_.mixture.normed.as<float>();
  for (int t; (t = pool_.claim(thread, tokens)) >= 0;) {
    float* row = normed + t * hidden_stride_;
    kernels_.rms_norm(space_.hidden.as<float>() + t * hidden_stride_, layer.mlp_norm.weight,
                      layer.mlp_norm.eps, model_.hidden_size, row);
    std::fill(row + model_.hidden_size, row + hidden_stride_, 0.0f);
  }
  next(thread, Operation::prepare);
  const Activations x = prepare(thread, mixture.router, normed, hidden_stride_, kNoNorm, nullptr, tokens,
                                mixture.router.weight.columns);
  project(thread, mixture.router, x, false, space_.mixture.logits.as<float>(), logits_stride_);
  next(thread, Operation::router);
  if (tokens > kChosenTogether) {
    for (int t; (t = pool_.claim(thread, tokens)) >= 0;) choose(thread, mixture, t);
    next(thread, Operation::router);
  }
  while (pool_.claim(thread, 1) >= 0) {
    for (int t = 0; t < tokens && tokens <= kChosenTogether; ++t) choose(thread, mixture, t);
    group(mixture);
  }
  next(thread, Operation::router);
}

// Of experts that count the same the first is chosen; what is not a number comes last, and stays so.
void Step::choose(int thread, const Mixture& mixture, int64_t token) {
  const float* logits = space_.mixture.logits.as<float>() + token * logits_stride_;
  int32_t* chosen = space_.mixture.chosen.as<int32_t>() + token * mixture.passes();
  float* weights = space_.mixture.weights.as<float>() + token * mixture.passes();
  const int experts = mixture.routed(), top_k = mixture.top_k;
  float* shares = space_.threads[thread].choice.as<float>();
  int32_t* order = reinterpret_cast<int32_t*>(shares + experts);
  const float maximum = *std::max_element(logits, logits + experts);
  for (int i = 0; i < experts; ++i) shares[i] = std::exp(logits[i] - maximum);
  const float sum = std::accumulate(shares, shares + experts, 0.0f);
  for (int i = 0; i < experts; ++i) shares[i] /= sum;

  const auto rank = [shares](int32_t i) { return shares[i] >= 0.0f ? shares[i] : -1.0f; };
  std::iota(order, order + experts, 0);
  std::partial_sort(order, order + top_k, order + experts, [&rank](int32_t a, int32_t b) {
    return rank(a) > rank(b) || (rank(a) == rank(b) && a < b);
  });
  float total = 1.0f;
  if (mixture.normalize_top_k) {
    total = 0.0f;
    for (int i = 0; i < top_k; ++i) total += shares[order[i]];
  }
  std::sort(order, order + top_k);
  for (int i = 0; i < top_k; ++i) {
    chosen[i] = order[i];
    weights[i] = shares[order[i]] / total;
  }
  if (mixture.shared) {
    chosen[top_k] = experts;
    weights[top_k] = mixture.shared_gate ? sigmoid(logits[experts]) : 1.0f;
  }
}

// Rows for all tokens of the first expert, then of the second, and so on.
void Step::group(const Mixture& mixture) {
  MixtureSpace& space = space_.mixture;
  const int64_t entries = static_cast<int64_t>(batch_->input.tokens) * mixture.passes();
  const int32_t* chosen = space.chosen.as<int32_t>();
  std::vector<int32_t>& next_rows = space.next_rows;
  std::fill(next_rows.begin(), next_rows.end(), 0);
  for (int64_t i = 0; i < entries; ++i) ++next_rows[chosen[i]];
  space.work.clear();
  PanelEnds inputs, gated;
  int64_t panels = 0, gate_up_shares = 0, down_shares = 0;
  int32_t row = 0;
  const auto place = [&](const Linear& linear, int rows, PanelEnds& ends, int64_t& shares) {
    return lay_out(kernels_, options_.integer_activations, linear, rows, pool_.size(), space.panels, ends,
                   shares);
  };
  for (size_t i = 0; i < mixture.experts.size(); ++i) {
    const Expert& expert = mixture.experts[i];
    const int32_t rows = std::exchange(next_rows[i], row);
    if (rows == 0) continue;
    space.work.push_back({&expert, row, rows, panels, place(expert.gate_up, rows, inputs, gate_up_shares),
                          place(expert.down, rows, gated, down_shares)});
    panels += space.work.back().gate_up.x.panels;
    row += rows;
  }
  for (int64_t i = 0; i < entries; ++i) {
    const int32_t free = next_rows[chosen[i]]++;
    space.token_rows.as<int32_t>()[i] = free;
    space.row_tokens.as<int32_t>()[free] = static_cast<int32_t>(i / mixture.passes());
  }
  space.num_panels.store(panels, std::memory_order_release);
  space.gate_up_shares.store(gate_up_shares, std::memory_order_release);
  space.down_shares.store(down_shares, std::memory_order_release);
}

// The next items, up to `end`, of a round whose number of items group() has found; -1 after the last. A
// late thread may read the number of a later layer, but then its own round is over.
int64_t Step::claim_found(int thread, const std::atomic<int64_t>& items, int64_t& end) {
  const int64_t found = items.load(std::memory_order_acquire), several = found / kMostClaims + 1;
  const int64_t claims = pool_.over(thread) ? 0 : (found + several - 1) / several;
  const int claim = pool_.claim(thread, static_cast<int>(claims));
  end = std::min(found, (claim + 1) * several);
  return claim < 0 ? -1 : claim * several;
}

// Every expert's rows in panels for one of its linears.
void Step::fill_experts(int thread, ExpertLinear ExpertWork::*which) {
  const std::vector<ExpertWork>& work = space_.mixture.work;
  const auto before = [](int64_t panel, const ExpertWork& each) { return panel < each.first_panel; };
  for (int64_t panel, end; (panel = claim_found(thread, space_.mixture.num_panels, end)) >= 0;) {
    auto expert = std::upper_bound(work.begin(), work.end(), panel, before) - 1;
    for (; panel < end; ++panel) {
      if (panel == expert->first_panel + expert->gate_up.x.panels) ++expert;
      fill_expert_panel(thread, *expert, which, static_cast<int>(panel - expert->first_panel));
    }
  }
  next(thread, Operation::prepare);
}

void Step::fill_expert_panel(int thread, const ExpertWork& work, ExpertLinear ExpertWork::*which, int panel) {
  const Activations& x = (work.*which).x;
  const bool gathered = which == &ExpertWork::gate_up;
  const int first = panel * x.panel, count = std::min(x.panel, work.rows - first);
  const int features = gathered ? x.columns : work.expert->intermediate_size;
  const auto row = [&](int t) -> const float* {
    const int64_t index = work.first_row + first + t;
    if (!gathered) return space_.mixture.gated.as<float>() + index * expert_stride_;
    const int32_t token = space_.mixture.row_tokens.as<int32_t>()[index];
    return space_.mixture.normed.as<float>() + token * hidden_stride_;
  };
  const float* source = row(0);
  int64_t stride = expert_stride_;
  if (features < x.columns || (gathered && count > 1)) {
    float* scratch = space_.threads[thread].rows.as<float>();
    for (int t = 0; t < count; ++t) {
      std::memcpy(scratch + t * x.columns, row(t), features * sizeof(float));
      std::fill(scratch + t * x.columns + features, scratch + (t + 1) * x.columns, 0.0f);
    }
    source = scratch;
    stride = x.columns;
  }
  const int64_t start = static_cast<int64_t>(first) * x.columns;
  kernels_.fill_panel(x.form, source, stride, count, panel == x.panels - 1 ? x.last : x.panel, x.columns,
                      static_cast<uint8_t*>(x.values) + start * value_bytes(x.form),
                      x.scales + start / kActivationGroup, x.sums + start / kActivationGroup);
}

// Every tile of one linear of every expert, each into sink_of(work).
template <typename SinkOf>
void Step::multiply_experts(int thread, ExpertLinear ExpertWork::*which, const std::atomic<int64_t>& shares,
                            SinkOf&& sink_of) {
  const std::vector<ExpertWork>& work = space_.mixture.work;
  const auto before = [which](int64_t share, const ExpertWork& each) {
    return share < (each.*which).first_share;
  };
  for (int64_t share, end; (share = claim_found(thread, shares, end)) >= 0;) {
    for (; share < end; ++share) {
      const ExpertWork& expert = *(std::upper_bound(work.begin(), work.end(), share, before) - 1);
      const ExpertLinear& each = expert.*which;
      multiply_share(kernels_, *each.linear, each.x, each.share, static_cast<int>(share - each.first_share),
                     space_.threads[thread], sink_of(expert));
    }
  }
}

// As one number, added to the residual stream last: the experts of a token in the order of their numbers.
void Step::sum_experts(int thread, const Mixture& mixture) {
  const MixtureSpace& space = space_.mixture;
  const int passes = mixture.passes(), size = model_.hidden_size;
  float* total = space_.threads[thread].rows.as<float>();
  for (int t; (t = pool_.claim(thread, batch_->input.tokens)) >= 0;) {
    std::fill(total, total + size, 0.0f);
    for (int64_t i = static_cast<int64_t>(t) * passes; i < static_cast<int64_t>(t + 1) * passes; ++i) {
      const float weight = space.weights.as<float>()[i];
      const float* output = space.outputs.as<float>() + space.token_rows.as<int32_t>()[i] * hidden_stride_;
      for (int column = 0; column < size; ++column) total[column] += weight * output[column];
    }
    float* hidden = space_.hidden.as<float>() + t * hidden_stride_;
    for (int column = 0; column < size; ++column) hidden[column] += total[column];
  }
}

}  // namespace gristmill
