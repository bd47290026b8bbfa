#include "step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear_share.hpp"
#include "vocabulary_passes.hpp"

namespace gristmill {
namespace {

constexpr int kEmbedTokens = 8;      // tokens that one thread looks up at a time
constexpr int kRedundantTokens = 4;  // up to here every thread prepares the input for itself

static_assert(kTileRows == kVocabularyTile, "the sampler's tiles are those of the head");

}  // namespace

Step::Step(const KernelTable& kernels, const Model& model, KvCache& cache, ThreadPool& pool, StepOptions options)
    : kernels_(kernels), model_(model), cache_(cache), pool_(pool), options_(options), angles_(model.ropes) {
  hidden_stride_ = (model.hidden_size + 31) / 32 * 32;
  qkv_stride_ = attended_stride_ = gated_stride_ = 0;
  for (const Layer& layer : model.layers) {
    qkv_stride_ = std::max<int64_t>(qkv_stride_, (layer.qkv.out_features + 15) / 16 * 16);
    attended_stride_ = std::max<int64_t>(attended_stride_, layer.o.weight.columns);
    gated_stride_ = std::max<int64_t>(gated_stride_, layer.down.weight.columns);
    if (layer.mixture) measure_mixture(*layer.mixture);
  }
  space_.threads.resize(pool.size());
  for (ThreadSpace& space : space_.threads) {
    if (kernels.linear_tiles != nullptr) space.scratch.reserve(kLinearScratchBytes);
    space.tile.reserve(kChunkTokens * kTileRows * 4);
    space.states.reserve(2 * kMostAttendRows * kMostHeadDim * 4);
  }
}

int Step::run(const Batch& batch, float* logits, float* tile_maxima) {
  batch_ = &batch;
  logits_ = logits;
  tile_maxima_ = tile_maxima;
  not_finite_ = -1;
  reserve(batch);
  reserve_mixture(batch.input.tokens);
  pool_.run([this](int thread) { forward(thread); });
  angles_.keep();
  return not_finite_;
}

void Step::reserve(const Batch& batch) {
  const int64_t tokens = batch.input.tokens;
  const int64_t padded = (tokens + kMostPanelTokens) / kMostPanelTokens * kMostPanelTokens;
  const int64_t widest = std::max({hidden_stride_, attended_stride_, gated_stride_, expert_stride_});
  space_.hidden.reserve(tokens * hidden_stride_ * 4);
  space_.qkv.reserve(tokens * qkv_stride_ * 4);
  space_.attended.reserve(tokens * attended_stride_ * 4);
  space_.gated.reserve(padded * gated_stride_ * 4);
  space_.panels.reserve(padded, widest);
  int positions = 0;
  for (const int32_t position : batch.positions) positions = std::max(positions, position + 1);
  angles_.reserve(positions);
  for (ThreadSpace& space : space_.threads) {
    space.panels.reserve(kMostPanelTokens, widest);
    space.rows.reserve(kMostPanelTokens * widest * 4);
  }
  plans_.clear();
  plan_of_.clear();
  int64_t partial_floats = 0;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const Attention& a = model_.layers[i].attention;
    const auto same = [&a](const Attention& b) {
      return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.window == b.window;
    };
    if (i > 0 && same(model_.layers[i - 1].attention)) {
      plan_of_.push_back(plan_of_.back());
    } else {
      plan_of_.push_back(static_cast<int>(plans_.size()));
      plans_.push_back(plan_attention(batch, a, kernels_.attend_rows, pool_.size()));
    }
    const int64_t floats = 2 + cache_.layout(static_cast<int>(i), 0).padded_dim;
    partial_floats = std::max(partial_floats, plans_.back().partials * floats);
  }
  space_.partials.reserve(partial_floats * 4);
}

void Step::next(int thread, Operation done) {
  pool_.finish(thread);
  if (!options_.profile || thread != 0) return;
  const auto now = std::chrono::steady_clock::now();
  seconds_[static_cast<int>(done)] += std::chrono::duration<double>(now - mark_).count();
  mark_ = now;
}

void Step::forward(int thread) {
  if (options_.profile && thread == 0) mark_ = std::chrono::steady_clock::now();
  embed(thread);
  next(thread, Operation::embed);
  for (int index = 0; index < static_cast<int>(model_.layers.size()); ++index) {
    layer(thread, index);
    if (options_.debug_nan) {
      check_finite(thread, index, space_.hidden.as<float>(), batch_->input.tokens * hidden_stride_);
    }
  }
  if (batch_->input.rows > 0) head(thread);
}

void Step::layer(int thread, int index) {
  const Layer& layer = model_.layers[index];
  const int tokens = batch_->input.tokens;
  const int attended = layer.attention.num_heads * layer.attention.head_dim;
  float* hidden = space_.hidden.as<float>();

  Activations x = prepare(thread, layer.qkv, hidden, hidden_stride_, layer.input_norm, nullptr, tokens,
                          model_.hidden_size);
  project(thread, layer.qkv, x, false, space_.qkv.as<float>(), qkv_stride_);
  next(thread, Operation::qkv);
  append(thread, index);
  next(thread, Operation::append);
  attend(thread, index);
  next(thread, Operation::attend);
  x = prepare(thread, layer.o, space_.attended.as<float>(), attended_stride_, kNoNorm, nullptr, tokens, attended);
  project(thread, layer.o, x, true, hidden, hidden_stride_);
  next(thread, Operation::o);

  if (layer.mixture) return mix(thread, layer);
  x = prepare(thread, layer.gate_up, hidden, hidden_stride_, layer.mlp_norm, nullptr, tokens, model_.hidden_size);
  x = gate(thread, layer, x);
  project(thread, layer.down, x, true, hidden, hidden_stride_);
  next(thread, Operation::down);
}

void Step::head(int thread) {
  const StepInput& input = batch_->input;
  const Activations x = prepare(thread, model_.head, space_.hidden.as<float>(), hidden_stride_, model_.final_norm,
                                input.logit_rows, input.rows, model_.hidden_size);
  const Linear& linear = model_.head;
  const int64_t stride = model_.vocab_size;
  const Share share = share_of(kernels_, linear, x, pool_.size());
  const Sink sink = row_sink(linear, false, logits_, stride);
  for (int item; (item = pool_.claim(thread, count_shares(share, linear.tiles(), x))) >= 0;) {
    multiply_share(kernels_, linear, x, share, item, space_.threads[thread], sink);
    const ShareRange range = range_of(share, linear.tiles(), x, item);
    const int first = range.start * x.panel, count = std::min(range.end * x.panel, x.tokens) - first;
    for (int tile = range.tile; tile < range.tile + range.tiles; ++tile) {
      const TileOutput& output = linear.outputs[tile];
      tile_maxima(logits_ + first * stride + output.column, count, output.count, stride,
                  tile_maxima_ + first * linear.tiles() + tile, linear.tiles());
    }
  }
  next(thread, Operation::head);
  if (options_.debug_nan) {
    check_finite(thread, static_cast<int>(model_.layers.size()), logits_,
                 static_cast<int64_t>(input.rows) * model_.vocab_size);
  }
}

void Step::embed(int thread) {
  const int64_t bytes = model_.hidden_size * (model_.embedding_kind == WeightKind::bfloat16 ? 2 : 4);
  const int tokens = batch_->input.tokens, runs = (tokens + kEmbedTokens - 1) / kEmbedTokens;
  for (int i; (i = pool_.claim(thread, runs + angles_.missing())) >= 0;) {
    if (i >= runs) {
      angles_.compute(i - runs);
      continue;
    }
    for (int t = i * kEmbedTokens; t < std::min((i + 1) * kEmbedTokens, tokens); ++t) {
      kernels_.widen(model_.embedding_kind, model_.embedding + batch_->input.token_ids[t] * bytes,
                     model_.hidden_size, space_.hidden.as<float>() + t * hidden_stride_);
    }
  }
}

// The input of `linear` in panels: `tokens` rows of x (those of `rows`, if given), normed if asked.
Activations Step::prepare(int thread, const Linear& linear, const float* x, int64_t stride, const Norm& norm,
                          const int32_t* rows, int tokens, int in_features) {
  Activations panels = describe(kernels_, options_.integer_activations, linear.weight, tokens);
  const bool alone = tokens <= kRedundantTokens;
  ThreadSpace& own = space_.threads[thread];
  Panels& memory = alone ? own.panels : space_.panels;
  panels.values = memory.values.as<void>();
  panels.scales = memory.scales.as<float>();
  panels.sums = memory.sums.as<int32_t>();
  const int columns = panels.columns;
  const bool direct = norm.weight == nullptr && in_features == columns && rows == nullptr;
  const auto fill = [&](int p) {
    const int64_t first = static_cast<int64_t>(p) * panels.panel;
    const int count = std::min(panels.panel, tokens - static_cast<int>(first));
    const float* source = x + first * stride;
    if (!direct) {
      float* scratch = own.rows.as<float>();
      for (int t = 0; t < count; ++t) {
        const float* row = x + (rows == nullptr ? first + t : rows[first + t]) * stride;
        float* out = scratch + t * columns;
        if (norm.weight != nullptr) {
          kernels_.rms_norm(row, norm.weight, norm.eps, in_features, out);
        } else {
          std::memcpy(out, row, in_features * sizeof(float));
        }
        std::fill(out + in_features, out + columns, 0.0f);
      }
      source = scratch;
    }
    const int width = p == panels.panels - 1 ? panels.last : panels.panel;
    const int64_t start = first * columns;
    kernels_.fill_panel(panels.form, source, direct ? stride : columns, count, width, columns,
                        memory.values.as<uint8_t>() + start * value_bytes(panels.form),
                        panels.scales + start / kActivationGroup, panels.sums + start / kActivationGroup);
  };
  if (alone) {
    if (pool_.over(thread)) return panels;  // every item of the round is done: nobody will read them
    for (int p = 0; p < panels.panels; ++p) fill(p);
    return panels;
  }
  for (int p; (p = pool_.claim(thread, panels.panels)) >= 0;) fill(p);
  next(thread, Operation::prepare);
  return panels;
}

void Step::multiply(int thread, const Linear& linear, const Activations& x, const Sink& sink) {
  const Share share = share_of(kernels_, linear, x, pool_.size());
  const int shares = count_shares(share, linear.tiles(), x);
  for (int item; (item = pool_.claim(thread, shares)) >= 0;) {
    multiply_share(kernels_, linear, x, share, item, space_.threads[thread], sink);
  }
}

void Step::project(int thread, const Linear& linear, const Activations& x, bool add, float* y, int64_t stride) {
  multiply(thread, linear, x, row_sink(linear, add, y, stride));
}

// The input of the layer's last linear. On matrix tiles gated channels become its panels at once.
Activations Step::gate(int thread, const Layer& layer, const Activations& x) {
  float* gated = space_.gated.as<float>();
  Activations panels = describe(kernels_, options_.integer_activations, layer.down.weight, x.tokens);
  const bool at_once = on_matrix_tiles(kernels_, layer.gate_up.weight, x) && panels.form == ActivationForm::bfloat16;
  panels.values = gated;
  multiply(thread, layer.gate_up, x,
           {at_once ? Finish::gate_panels : Finish::gate, layer.gate_up.bias, nullptr, layer.activation,
            layer.intermediate_size, gated, gated_stride_, panels});
  next(thread, Operation::gate_up);
  if (at_once) return panels;
  return prepare(thread, layer.down, gated, gated_stride_, kNoNorm, nullptr, x.tokens, layer.intermediate_size);
}

void Step::check_finite(int thread, int index, const float* x, int64_t count) {
  while (pool_.claim(thread, 1) >= 0) {
    if (not_finite_ < 0 && kernels_.argmax(x, count) < 0) not_finite_ = index;
  }
  pool_.finish(thread);
}

}  // namespace gristmill
