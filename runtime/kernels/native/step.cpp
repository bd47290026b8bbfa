#include "step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vocabulary_passes.hpp"

namespace gristmill {
namespace {

constexpr int kChunkTokens = 128;           // tokens of one kernel call
constexpr int kEmbedTokens = 8;              // tokens that one thread looks up at a time
constexpr int kTileShareTokens = 512;       // tokens of one share on matrix tiles, at most
constexpr int kTileCallTokens = 64;         // and of one call, where calls can share decoded weights
constexpr int kRedundantTokens = 4;         // up to here every thread prepares the input for itself
constexpr int64_t kBlockBytes = 384 << 10;  // input that stays in the second level cache
constexpr int64_t kTileBlockBytes = 1 << 20;

static_assert(kTileRows == kVocabularyTile, "the sampler's tiles are those of the head");

constexpr Norm kNoNorm{nullptr, 0, 0};

bool is_integer(WeightKind kind) { return kind == WeightKind::int4 || kind == WeightKind::int8; }

int last_width(int rest, int panel) {
  if (rest == 0) return panel;
  int width = 1;
  while (width < rest) width *= 2;
  return width;
}

// The panels of `tokens` tokens, without memory.
Activations describe(const KernelTable& kernels, bool integer_activations, const Weight& weight, int tokens) {
  Activations x{};
  x.form = weight.kind == WeightKind::float32                    ? ActivationForm::float32
           : is_integer(weight.kind) && integer_activations ? ActivationForm::int8
                                                                 : ActivationForm::bfloat16;
  x.tokens = tokens;
  x.columns = weight.columns;
  x.panel = kernels.panel;
  x.panels = (tokens + x.panel - 1) / x.panel;
  x.last = last_width(tokens % x.panel, x.panel);
  return x;
}

int value_bytes(ActivationForm form) {
  return form == ActivationForm::int8 ? 1 : form == ActivationForm::bfloat16 ? 2 : 4;
}

bool on_matrix_tiles(const KernelTable& kernels, const Weight& weight, const Activations& x) {
  return kernels.linear_tiles != nullptr && x.form == ActivationForm::bfloat16 && weight.kind != WeightKind::float32;
}

int round_up(int number, int to) { return (number + to - 1) / to * to; }

// What one thread takes of a linear at a time, and what of it one call of a kernel does.
struct Share {
  int tiles;
  int panels;       // of one share
  int call_panels;
};

Share vector_share(const Activations& x) {
  const int64_t panel_bytes = static_cast<int64_t>(x.panel) * x.columns * value_bytes(x.form);
  const int call = kChunkTokens / x.panel;
  return {1, std::max<int>(1, static_cast<int>(kBlockBytes / panel_bytes / call)) * call, call};
}

// Several tiles share the tokens that they read, unless threads would then wait for each other.
Share tile_share(const Activations& x, int tiles, int threads) {
  const int64_t most = std::max<int64_t>(kTileBlockBytes / (x.columns * 2), kChunkTokens);
  const int tokens = x.panels * x.panel, limit = static_cast<int>(std::min<int64_t>(most, kTileShareTokens));
  const int blocks = (tokens + limit - 1) / limit;
  const int panels = round_up((x.panels + blocks - 1) / blocks, 2);
  int best = 1, least = tiles;
  for (int some = 1; some <= kMostLinearTiles; ++some) {
    const int shares = (tiles + some - 1) / some * blocks;
    const int longest = (shares + threads - 1) / threads * some;  // tiles of the busiest thread
    if (longest <= least) best = some, least = longest;
  }
  const bool sharing = static_cast<int64_t>(best) * kTileRows * x.columns * 2 <= kLinearScratchBytes;
  return {best, panels, sharing ? std::min(panels, kTileCallTokens / x.panel) : panels};
}

}  // namespace

Step::Step(const KernelTable& kernels, const Model& model, KvCache& cache, ThreadPool& pool, StepOptions options)
    : kernels_(kernels), model_(model), cache_(cache), pool_(pool), options_(options), angles_(model.ropes) {
  hidden_stride_ = (model.hidden_size + 31) / 32 * 32;
  qkv_stride_ = attended_stride_ = gated_stride_ = 0;
  for (const Layer& layer : model.layers) {
    qkv_stride_ = std::max<int64_t>(qkv_stride_, (layer.qkv.out_features + 15) / 16 * 16);
    attended_stride_ = std::max<int64_t>(attended_stride_, layer.o.weight.columns);
    gated_stride_ = std::max<int64_t>(gated_stride_, layer.down.weight.columns);
  }
  space_.threads.resize(pool.size());
  for (ThreadSpace& space : space_.threads) {
    if (kernels.linear_tiles != nullptr) space.scratch.reserve(kLinearScratchBytes);
    space.tile.reserve((kernels.linear_tiles != nullptr ? kMostLinearTiles * kTileShareTokens : kChunkTokens) *
                       kTileRows * 4);
    space.states.reserve(2 * kMostAttendRows * kMostHeadDim * 4);
  }
}

int Step::run(const Batch& batch, float* logits, float* tile_maxima) {
  batch_ = &batch;
  logits_ = logits;
  tile_maxima_ = tile_maxima;
  not_finite_ = -1;
  reserve(batch);
  pool_.run([this](int thread) { forward(thread); });
  angles_.keep();
  return not_finite_;
}

void Step::reserve(const Batch& batch) {
  const int64_t tokens = batch.input.tokens;
  const int64_t padded = (tokens + kMostPanelTokens) / kMostPanelTokens * kMostPanelTokens;
  const int64_t widest = std::max({hidden_stride_, attended_stride_, gated_stride_});
  space_.hidden.reserve(tokens * hidden_stride_ * 4);
  space_.qkv.reserve(tokens * qkv_stride_ * 4);
  space_.attended.reserve(tokens * attended_stride_ * 4);
  space_.gated.reserve(tokens * gated_stride_ * 4);
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
  for (int index = 0; index < static_cast<int>(model_.layers.size()); ++index) layer(thread, index);
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

  x = prepare(thread, layer.gate_up, hidden, hidden_stride_, layer.mlp_norm, nullptr, tokens, model_.hidden_size);
  multiply(thread, layer.gate_up, x, [&](int tile, const float* out, int first, int count) {
    const int channel = tile * (kTileRows / 2);
    const float* bias = layer.gate_up.bias == nullptr ? nullptr : layer.gate_up.bias + tile * kTileRows;
    kernels_.gate_tile(layer.activation, out, count, std::min(kTileRows / 2, layer.intermediate_size - channel),
                       bias, space_.gated.as<float>() + first * gated_stride_ + channel, gated_stride_);
  });
  next(thread, Operation::gate_up);
  x = prepare(thread, layer.down, space_.gated.as<float>(), gated_stride_, kNoNorm, nullptr, tokens,
              layer.intermediate_size);
  project(thread, layer.down, x, true, hidden, hidden_stride_);
  next(thread, Operation::down);
  if (options_.debug_nan) check_finite(thread, index, hidden, tokens * hidden_stride_);
}

void Step::head(int thread) {
  const StepInput& input = batch_->input;
  const Activations x = prepare(thread, model_.head, space_.hidden.as<float>(), hidden_stride_, model_.final_norm,
                                input.logit_rows, input.rows, model_.hidden_size);
  const Linear& linear = model_.head;
  const int64_t stride = model_.vocab_size;
  multiply(thread, linear, x, [&](int tile, const float* out, int first, int count) {
    const int width = linear.outputs[tile].count;
    const float* bias = linear.bias == nullptr ? nullptr : linear.bias + tile * kTileRows;
    float* logits = logits_ + first * stride + linear.outputs[tile].column;
    kernels_.store_tile(out, count, width, bias, false, logits, stride);
    tile_maxima(logits, count, width, stride, tile_maxima_ + first * linear.tiles() + tile, linear.tiles());
  });
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

// Every tile of `linear` for every token; store(tile, out, first token, tokens) takes them away.
template <typename Store>
void Step::multiply(int thread, const Linear& linear, const Activations& x, Store&& store) {
  const bool on_tiles = on_matrix_tiles(kernels_, linear.weight, x);
  const int tiles = linear.tiles();
  const Share share = on_tiles ? tile_share(x, tiles, pool_.size()) : vector_share(x);
  const auto kernel = x.form == ActivationForm::int8 ? kernels_.linear_int8 : kernels_.linear_float;
  const int parts = (tiles + share.tiles - 1) / share.tiles, blocks = (x.panels + share.panels - 1) / share.panels;
  ThreadSpace& space = space_.threads[thread];
  float* out = space.tile.as<float>();
  for (int item; (item = pool_.claim(thread, parts * blocks)) >= 0;) {
    const int tile = item % parts * share.tiles, some = std::min(share.tiles, tiles - tile);
    const int start = item / parts * share.panels, end = std::min(start + share.panels, x.panels);
    for (int panel = start; panel < end; panel += share.call_panels) {
      const int count = std::min(share.call_panels, end - panel), first = panel * x.panel;
      if (on_tiles) {
        const TileReuse reuse = end - start <= share.call_panels ? TileReuse::none
                                : panel == start                 ? TileReuse::first
                                                                 : TileReuse::again;
        kernels_.linear_tiles(linear.weight, tile, some, x, panel, count, reuse, space.scratch.as<void>(), out);
      } else {
        kernel(linear.weight, tile, x, panel, count, out);
      }
      const int padded = (count - 1) * x.panel + (panel + count == x.panels ? x.last : x.panel);
      for (int i = 0; i < some; ++i) {
        store(tile + i, out + static_cast<int64_t>(i) * padded * kTileRows, first,
              std::min(padded, x.tokens - first));
      }
    }
  }
}

void Step::project(int thread, const Linear& linear, const Activations& x, bool add, float* y, int64_t stride) {
  multiply(thread, linear, x, [&](int tile, const float* out, int first, int count) {
    const TileOutput& output = linear.outputs[tile];
    const float* bias = linear.bias == nullptr ? nullptr : linear.bias + tile * kTileRows;
    kernels_.store_tile(out, count, output.count, bias, add, y + first * stride + output.column, stride);
  });
}

void Step::check_finite(int thread, int index, const float* x, int64_t count) {
  while (pool_.claim(thread, 1) >= 0) {
    if (not_finite_ < 0 && kernels_.argmax(x, count) < 0) not_finite_ = index;
  }
  pool_.finish(thread);
}

}  // namespace gristmill
