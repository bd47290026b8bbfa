// Weights of any kind but float32 times bfloat16 activations on matrix tiles: 16 rows by 16 tokens by 32
// columns an instruction, for panels of every width.
//
// Weights are the rows of the first operand (decode_bfloat16_amx.inl) and panels the second one, so sums
// come out as [row][token]. All columns are added in the tiles, in one order for every width of panel; sums
// that wait in memory meanwhile come back as they were.
namespace linear_bfloat16_amx {

using decode_bfloat16_amx::kHalfStep;
using decode_bfloat16_amx::kStep;
using decode_bfloat16_amx::kStepColumns;
using decode_bfloat16_amx::Reader;
using finish_bfloat16_amx::Pending;

constexpr int kWholeSteps = 18;  // as many are added in one go
constexpr int kNearSteps = 12;   // of more, so many: a pair's values stay in the first level cache
constexpr int kNarrowSteps = 4;  // decoded at a time for few tokens
constexpr int kMostSteps = kDecodedBytes / (kStep * 2);  // decoded at a time for many, of all tiles together
constexpr int kPairSums = 2 * kMostPanelTokens * kTileRows;

// Tiles 0, 1: sums [16 rows][width] of the low and high rows for a first panel; 2, 3: for a second one; 4, 5:
// weights [16 rows][32] of the low and high rows; 6, 7: the panels' values [16 pairs][width][2].
constexpr TileConfig tiles_for(int first, int second) {
  const uint16_t a = static_cast<uint16_t>(4 * first), b = static_cast<uint16_t>(4 * second);
  return {1, 0, {}, {a, a, b, b, 64, 64, a, b}, {16, 16, 16, 16, 16, 16, 16, 16}};
}
#define GRISTMILL_WIDTHS(first) \
  {tiles_for(first, 1), tiles_for(first, 2), tiles_for(first, 4), tiles_for(first, 8), tiles_for(first, 16)}
alignas(64) constexpr TileConfig kTiles[5][5] = {GRISTMILL_WIDTHS(1), GRISTMILL_WIDTHS(2), GRISTMILL_WIDTHS(4),
                                                 GRISTMILL_WIDTHS(8), GRISTMILL_WIDTHS(16)};
#undef GRISTMILL_WIDTHS

// One or two panels that are multiplied together.
struct Pair {
  const uint16_t* values[2];
  int widths[2];
  int panels;
  int columns;
  int first;    // the first panel's number
  int token;    // its first token's
  int tokens;   // of both, without padding
};

Pair pair_at(const Activations& x, int panel, int end) {
  Pair pair{};
  const auto width = [&x](int p) { return p == x.panels - 1 ? x.last : x.panel; };
  pair.columns = x.columns;
  pair.first = panel;
  pair.token = panel * x.panel;
  pair.tokens = x.tokens - pair.token;
  pair.panels = end - panel < 2 ? 1 : 2;
  pair.values[0] = static_cast<const uint16_t*>(x.values) + static_cast<int64_t>(panel) * x.panel * x.columns;
  pair.widths[0] = pair.widths[1] = width(panel);
  if (pair.panels == 2) {
    pair.values[1] = pair.values[0] + static_cast<int64_t>(x.panel) * x.columns;
    pair.widths[1] = width(panel + 1);
  }
  return pair;
}

void configure(const Pair& pair) {
  _tile_loadconfig(&kTiles[__builtin_ctz(pair.widths[0])][__builtin_ctz(pair.widths[1])]);
}

template <int kPanels>
inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kPanels == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// Sums in memory: [panel][half][16 rows][width].
template <int kPanels>
inline void load_sums(const float* sums, const Pair& pair) {
  const int first = pair.widths[0], second = pair.widths[1];
  _tile_loadd(0, sums, 4 * first);
  _tile_loadd(1, sums + 16 * first, 4 * first);
  if constexpr (kPanels == 2) {
    _tile_loadd(2, sums + 32 * first, 4 * second);
    _tile_loadd(3, sums + 32 * first + 16 * second, 4 * second);
  }
}

template <int kPanels>
inline void store_sums(float* sums, const Pair& pair) {
  const int first = pair.widths[0], second = pair.widths[1];
  _tile_stored(0, sums, 4 * first);
  _tile_stored(1, sums + 16 * first, 4 * first);
  if constexpr (kPanels == 2) {
    _tile_stored(2, sums + 32 * first, 4 * second);
    _tile_stored(3, sums + 32 * first + 16 * second, 4 * second);
  }
}

// A step's weights, low rows first. Those that come from the second level cache would push the panels out of
// the first one, were they not said to be used once.
template <bool kFar>
inline void load_low_rows(const uint16_t* decoded) {
  if constexpr (kFar) {
    _tile_stream_loadd(4, decoded, 64);
  } else {
    _tile_loadd(4, decoded, 64);
  }
}

template <bool kFar>
inline void load_high_rows(const uint16_t* decoded) {
  if constexpr (kFar) {
    _tile_stream_loadd(5, decoded + kHalfStep, 64);
  } else {
    _tile_loadd(5, decoded + kHalfStep, 64);
  }
}

// Adds `steps` decoded steps from step `start` of the panels, and with kFar finishes what is pending meanwhile.
template <int kPanels, bool kFar>
inline void add_steps(const uint16_t* decoded, int steps, int start, const Pair& pair, Pending& pending) {
  const int first = pair.widths[0], second = pair.widths[1];
  const uint16_t* x = pair.values[0] + static_cast<int64_t>(start) * kStepColumns * first;
  const uint16_t* y = pair.values[1] + static_cast<int64_t>(start) * kStepColumns * second;
  const int pieces = kFar ? (pending.left() + steps - 1) / steps : 0;  // a step
  for (int step = 0; step < steps; ++step, decoded += kStep) {
    load_low_rows<kFar>(decoded);
    _tile_loadd(6, x + step * kStepColumns * first, 4 * first);
    load_high_rows<kFar>(decoded);
    if constexpr (kPanels == 2) _tile_loadd(7, y + step * kStepColumns * second, 4 * second);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kPanels == 2) {
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int i = 0; i < pieces; ++i) pending.advance();
  }
}

// The sums in the tiles go to the sink, by and by.
template <int kPanels>
inline void finish_sums(const Pair& pair, int tile, const float* scales, Pending& pending, float* sums) {
  pending.finish();
  store_sums<kPanels>(sums, pair);
  for (int i = 0; i < kPanels; ++i) {
    const int before = i * pair.widths[0];
    pending.put({sums + before * kTileRows, scales, tile, pair.widths[i], pair.first + i, pair.token + before,
                 pair.tokens - before});
  }
}

// Up to two panels: sums stay in the tiles while the weights are decoded, a little at a time.
template <WeightKind kKind, int kPanels>
void multiply_narrow(const Weight& weight, int tile, const Pair& pair, uint16_t* decoded, const Sink& sink) {
  alignas(64) float sums[kPairSums];
  Pending pending(sink);
  Reader<kKind> reader;
  reader.open(weight, weight.data + tile * weight.tile_bytes);
  const int all = weight.columns / kStepColumns;
  clear_sums<kPanels>();
  for (int start = 0; start < all; start += kNarrowSteps) {
    const int steps = all - start < kNarrowSteps ? all - start : kNarrowSteps;
    reader.decode(steps, decoded);
    add_steps<kPanels, false>(decoded, steps, start, pair, pending);
  }
  finish_sums<kPanels>(pair, tile, reader.scales(), pending, sums);
  pending.finish();
}

// Several tiles that are multiplied together.
struct Tiles {
  int first;
  int count;
  const float* scales[kMostLinearTiles];
};

// `steps` decoded steps of each tile, from step `start`, times one pair of panels, whose values stay in the
// first level cache from tile to tile. `sums` holds what has been added so far, kPairSums of each tile, or of
// all where none waits for more steps.
template <int kPanels>
void add_pair(const uint16_t* decoded, const Tiles& tiles, int steps, int start, const Pair& pair,
              Pending& pending, float* sums) {
  const int near = steps <= kWholeSteps ? steps : kNearSteps;
  const int64_t apart = near == pair.columns / kStepColumns ? 0 : kPairSums;
  for (int step = 0; step < steps; step += near) {
    const int some = steps - step < near ? steps - step : near;
    for (int i = 0; i < tiles.count; ++i) {
      float* own = sums + i * apart;
      if (start + step == 0) {
        clear_sums<kPanels>();
      } else {
        load_sums<kPanels>(own, pair);
      }
      add_steps<kPanels, true>(decoded + (static_cast<int64_t>(i) * steps + step) * kStep, some, start + step, pair,
                               pending);
      if (start + step + some == pair.columns / kStepColumns) {
        finish_sums<kPanels>(pair, tiles.first + i, tiles.scales[i], pending, own);
      } else {
        store_sums<kPanels>(own, pair);
      }
    }
  }
}

// Many panels: weights are decoded for all of them together.
template <WeightKind kKind>
void multiply_wide(const Weight& weight, int tile, int count, const Activations& x, int first, int end,
                   uint16_t* decoded, float* sums, const Sink& sink) {
  const int all = weight.columns / kStepColumns, most = kMostSteps / count / 2 * 2;
  Reader<kKind> readers[kMostLinearTiles];
  Tiles tiles{tile, count, {}};
  Pending pending(sink);
  for (int i = 0; i < count; ++i) {
    readers[i].open(weight, weight.data + (tile + i) * weight.tile_bytes);
    tiles.scales[i] = readers[i].scales();
  }
  for (int start = 0; start < all; start += most) {
    const int steps = all - start < most ? all - start : most;
    for (int i = 0; i < count; ++i) readers[i].decode(steps, decoded + static_cast<int64_t>(i) * steps * kStep);
    for (int panel = first; panel < end; panel += 2) {
      const Pair pair = pair_at(x, panel, end);
      float* own = sums + (steps == all ? 0 : static_cast<int64_t>(panel - first) / 2 * count * kPairSums);
      configure(pair);
      const auto add = pair.panels == 2 ? add_pair<2> : add_pair<1>;
      add(decoded, tiles, steps, start, pair, pending, own);
    }
  }
  pending.finish();
}

template <WeightKind kKind>
void multiply(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count, void* scratch,
              const Sink& sink) {
  uint16_t* decoded = static_cast<uint16_t*>(scratch);
  if (count > 2) {
    float* sums = static_cast<float*>(scratch) + kDecodedBytes / sizeof(float);
    multiply_wide<kKind>(weight, tile, tiles, x, first, first + count, decoded, sums, sink);
  } else {
    const Pair pair = pair_at(x, first, first + count);
    const auto narrow = count == 2 ? multiply_narrow<kKind, 2> : multiply_narrow<kKind, 1>;
    configure(pair);
    for (int i = 0; i < tiles; ++i) narrow(weight, tile + i, pair, decoded, sink);
  }
  _tile_release();
}

void linear(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count, void* scratch,
            const Sink& sink) {
  const auto kernel = weight.kind == WeightKind::int4   ? multiply<WeightKind::int4>
                      : weight.kind == WeightKind::int8 ? multiply<WeightKind::int8>
                                                        : multiply<WeightKind::bfloat16>;
  kernel(weight, tile, tiles, x, first, count, scratch, sink);
}

// ---------------------------------------------------------------- panels

// 32 or 64 columns of a token as the words of its panel: pairs of even columns, then of odd ones.
inline int load_pairs(const float* x, int columns, __m512i (&pairs)[2]) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const __m512 even_low = _mm512_permutex2var_ps(a, even, b), odd_low = _mm512_permutex2var_ps(a, odd, b);
  if (columns < 64) {
    pairs[0] = (__m512i)_mm512_cvtne2ps_pbh(odd_low, even_low);
    return 1;
  }
  const __m512 c = _mm512_loadu_ps(x + 32), d = _mm512_loadu_ps(x + 48);
  pairs[0] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(c, even, d), even_low);
  pairs[1] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(c, odd, d), odd_low);
  return 2;
}

// Sixteen words of each token, one token after the other, as [16][width].
inline void put_words(const __m512i* words, int width, uint16_t* values) {
  __m512i rows[16];
  transpose_words16(words, rows);
  const __mmask16 mask = static_cast<__mmask16>((1u << width) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(values + 2 * i * width, mask, rows[i]);
}

void fill_pairs(const float* x, int64_t stride, int tokens, int width, int columns, uint16_t* values) {
  for (int k = 0; k < columns; k += 64, values += 64 * width) {
    __m512i words[2][16];
    int steps = columns - k < 64 ? 1 : 2;
    for (int t = 0; t < 16; ++t) {
      __m512i pairs[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (t < tokens) steps = load_pairs(x + t * stride + k, columns - k, pairs);
      words[0][t] = pairs[0];
      words[1][t] = pairs[1];
    }
    for (int step = 0; step < steps; ++step) {
      if (width == 1) {
        _mm512_storeu_si512(values + step * kStepColumns, words[step][0]);
      } else {
        put_words(words[step], width, values + step * kStepColumns * width);
      }
    }
  }
}

void fill_panel(ActivationForm form, const float* x, int64_t stride, int tokens, int width, int columns, void* values,
                float* scales, int32_t* sums) {
  if (form == ActivationForm::bfloat16) {
    fill_pairs(x, stride, tokens, width, columns, static_cast<uint16_t*>(values));
  } else {
    gristmill::fill_panel(form, x, stride, tokens, width, columns, values, scales, sums);
  }
}

}  // namespace linear_bfloat16_amx

void set_linear_bfloat16_tile_kernels(KernelTable& table) {
  table.linear_tiles = linear_bfloat16_amx::linear;
  table.fill_panel = linear_bfloat16_amx::fill_panel;
}
