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

constexpr int kNearSteps = 9;    // whose operands stay in the first level cache
constexpr int kNarrowSteps = 4;  // decoded at a time for few tokens
// Decoded at a time for many, of all tiles together.
constexpr int kMostSteps = kLinearScratchBytes / (kStep * 2);

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
};

Pair pair_at(const Activations& x, int panel, int end) {
  Pair pair{};
  const auto width = [&x](int p) { return p == x.panels - 1 ? x.last : x.panel; };
  pair.columns = x.columns;
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

// Adds `steps` decoded steps from step `start` of the panels.
template <int kPanels>
inline void add_steps(const uint16_t* decoded, int steps, int start, const Pair& pair) {
  const int first = pair.widths[0], second = pair.widths[1];
  const uint16_t* x = pair.values[0] + static_cast<int64_t>(start) * kStepColumns * first;
  const uint16_t* y = pair.values[1] + static_cast<int64_t>(start) * kStepColumns * second;
  for (int step = 0; step < steps; ++step, decoded += kStep) {
    _tile_loadd(4, decoded, 64);
    _tile_loadd(6, x + step * kStepColumns * first, 4 * first);
    _tile_loadd(5, decoded + kHalfStep, 64);
    if constexpr (kPanels == 2) _tile_loadd(7, y + step * kStepColumns * second, 4 * second);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kPanels == 2) {
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// One panel's sums [half][16 rows][width] as out [width][32], times the rows' scales if there are any.
inline void turn_over(const float* sums, int width, const float* scales, float* out) {
  const __mmask16 mask = static_cast<__mmask16>((1u << width) - 1);
  for (int half = 0; half < 2; ++half, sums += 16 * width) {
    __m512i lines[16], rows[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) lines[r] = _mm512_maskz_loadu_epi32(mask, sums + r * width);
    transpose_words16(lines, rows);
    const __m512 scale = scales != nullptr ? _mm512_load_ps(scales + half * 16) : _mm512_set1_ps(1.0f);
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(rows[t]), scale);
      if (t < width) _mm512_store_ps(out + t * kTileRows + half * 16, scaled);
    }
  }
}

// The sums in the tiles as out [token][32], times the rows' scales if there are any.
template <int kPanels>
inline void finish_sums(const Pair& pair, const float* scales, float* out) {
  alignas(64) float sums[2 * kMostPanelTokens * kTileRows];
  store_sums<kPanels>(sums, pair);
  for (int panel = 0; panel < kPanels; ++panel) {
    const int start = panel * pair.widths[0] * kTileRows;
    turn_over(sums + start, pair.widths[panel], scales, out + start);
  }
}

// Up to two panels: sums stay in the tiles while the weights are decoded, a little at a time.
template <WeightKind kKind, int kPanels>
void multiply_narrow(const Weight& weight, const uint8_t* tile, const Pair& pair, uint16_t* decoded, float* out) {
  Reader<kKind> reader;
  reader.open(weight, tile);
  const int all = weight.columns / kStepColumns;
  clear_sums<kPanels>();
  for (int start = 0; start < all; start += kNarrowSteps) {
    const int steps = all - start < kNarrowSteps ? all - start : kNarrowSteps;
    reader.decode(steps, decoded);
    add_steps<kPanels>(decoded, steps, start, pair);
  }
  finish_sums<kPanels>(pair, reader.scales(), out);
}

// `steps` decoded steps of each of `tiles` tiles, from step `start`, times one pair of panels. The pair's
// values stay in the first level cache from tile to tile.
template <int kPanels>
void add_pair(const uint16_t* decoded, int tiles, int steps, int start, const Pair& pair,
              const float* const* scales, float* out, int64_t tile_stride) {
  for (int step = 0; step < steps; step += kNearSteps) {
    const int some = steps - step < kNearSteps ? steps - step : kNearSteps;
    for (int tile = 0; tile < tiles; ++tile) {
      float* sums = out + tile * tile_stride;
      if (start + step == 0) {
        clear_sums<kPanels>();
      } else {
        load_sums<kPanels>(sums, pair);
      }
      add_steps<kPanels>(decoded + (static_cast<int64_t>(tile) * steps + step) * kStep, some, start + step, pair);
      if (start + step + some == pair.columns / kStepColumns) {
        finish_sums<kPanels>(pair, scales[tile], sums);
      } else {
        store_sums<kPanels>(sums, pair);
      }
    }
  }
}

// Many panels: weights are decoded for all of them together.
template <WeightKind kKind>
void multiply_wide(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count,
                   bool again, uint16_t* decoded, float* out) {
  const int all = weight.columns / kStepColumns, most = kMostSteps / tiles / 2 * 2;
  const int last_width = first + count == x.panels ? x.last : x.panel;
  const int64_t tile_stride = static_cast<int64_t>((count - 1) * x.panel + last_width) * kTileRows;
  Reader<kKind> readers[kMostLinearTiles];
  const float* scales[kMostLinearTiles];
  for (int i = 0; i < tiles; ++i) {
    readers[i].open(weight, weight.data + (tile + i) * weight.tile_bytes);
    scales[i] = readers[i].scales();
  }
  for (int start = 0; start < all; start += most) {
    const int steps = all - start < most ? all - start : most;
    for (int i = 0; i < tiles && !(again && steps == all); ++i) {
      readers[i].decode(steps, decoded + static_cast<int64_t>(i) * steps * kStep);
    }
    for (int panel = 0; panel < count; panel += 2) {
      const Pair pair = pair_at(x, first + panel, first + count);
      float* sums = out + static_cast<int64_t>(panel) * x.panel * kTileRows;
      configure(pair);
      const auto add = pair.panels == 2 ? add_pair<2> : add_pair<1>;
      add(decoded, tiles, steps, start, pair, scales, sums, tile_stride);
    }
  }
}

template <WeightKind kKind>
void multiply(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count,
              TileReuse reuse, uint16_t* decoded, float* out) {
  if (count > 2 || reuse != TileReuse::none) {
    multiply_wide<kKind>(weight, tile, tiles, x, first, count, reuse == TileReuse::again, decoded, out);
  } else {
    const Pair pair = pair_at(x, first, first + count);
    const int numbers = (pair.widths[0] + (count - 1) * pair.widths[1]) * kTileRows;
    const auto narrow = count == 2 ? multiply_narrow<kKind, 2> : multiply_narrow<kKind, 1>;
    configure(pair);
    for (int i = 0; i < tiles; ++i) {
      narrow(weight, weight.data + (tile + i) * weight.tile_bytes, pair, decoded, out + i * numbers);
    }
  }
  _tile_release();
}

void linear(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count,
            TileReuse reuse, void* scratch, float* out) {
  const auto kernel = weight.kind == WeightKind::int4   ? multiply<WeightKind::int4>
                      : weight.kind == WeightKind::int8 ? multiply<WeightKind::int8>
                                                        : multiply<WeightKind::bfloat16>;
  kernel(weight, tile, tiles, x, first, count, reuse, static_cast<uint16_t*>(scratch), out);
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
