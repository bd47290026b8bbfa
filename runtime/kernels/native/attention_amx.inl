// Attention over a bfloat16 cache on matrix tiles: up to 16 rows (a block) by 16 tokens by 32 dimensions, and
// by 16 dimensions by 16 tokens, an instruction. Over int8 caches attention_int8_amx.inl; others go to the
// vector kernels. Blocks of rows follow each other while keys and values are near.
//
// Queries and weights are rounded to bfloat16; sums, softmax and the normalizer stay float32. A tile's row
// is computed by itself and in the order of its dimensions or tokens, those of a span's units in turn, so a
// row's result does not depend on the rows beside it. A weight of zero hides a token, if the value is finite.
// Tile and vector instructions take turns by the span: between vector ones tiles would halve their rate.
namespace attention_amx {

// Tiles 0 .. 3: sums [rows][16]; 4: queries or weights [rows][2 pairs]; 5 .. 7: keys or values
// [pairs][16][2].
constexpr int kBlockRows = 16;
struct RowTiles {
  alignas(64) TileConfig of[kBlockRows];
};
constexpr RowTiles tiles_for(uint8_t pairs) {
  RowTiles tiles{};
  for (int r = 0; r < kBlockRows; ++r) {
    const uint8_t rows = r + 1;
    tiles.of[r] = {1, 0, {}, {64, 64, 64, 64, static_cast<uint16_t>(4 * pairs), 64, 64, 64},
                   {rows, rows, rows, rows, rows, pairs, pairs, pairs}};
  }
  return tiles;
}
constexpr RowTiles kWideTiles = tiles_for(16), kNarrowTiles = tiles_for(8);

constexpr int kPairTokens = 2 * kUnitTokens;
// 2^f for f in 0 .. 1.
constexpr float kCubic[] = {0.99992526f, 0.69583350f, 0.22606719f, 0.078024551f};

constexpr int kSums = 4;  // tiles of sums: what does not wait for each other hides the latency of a product
// Numbers from row to row: at a power of two all rows would fall into the same cache sets.
constexpr int kBfloat16Stride = kSpanTokens + 32;
static_assert(kSpanTokens >= kMostHeadDim, "queries have the stride of weights, sums that of scores");

// A pass of several blocks has as many rows in the last one as in the others: what the rows behind the last
// one hold is of no matter.
inline int block_rows(const Span& s) { return least(s.call->rows, kBlockRows); }

struct TileSpan : Span {
  const uint8_t* values[kSpanUnits];
  alignas(64) uint16_t rounded[kMostAttendRows * kBfloat16Stride];  // queries, then weights
  Floats lanes[kMostAttendRows];  // of a row's largest score, then of the sum of its weights
  float reduced[kMostAttendRows];
  // Values of the first and of the last unit, with zeros for tokens that no row sees.
  alignas(64) uint16_t edges[2][kUnitTokens * kMostHeadDim];
};

// ---------------------------------------------------------------- values

// Bits of the pair of tokens `token` and `token` + 1 that lie in begin .. end - 1, for each pair of a vector.
inline __mmask32 pair_mask(int token, int begin, int end) {
  const __mmask32 first = token >= begin && token < end ? 0x55555555u : 0;
  return first | (token + 1 >= begin && token + 1 < end ? 0xaaaaaaaau : 0);
}

inline bool sees(const Span& s, int row) { return s.begin[row] < s.end[row]; }

// Tokens of the span that some row sees, or that all rows with any see.
struct Seen {
  int begin, end;
};

inline Seen seen_by_any(const Span& s) {
  Seen seen{kSpanTokens, 0};
  for (int r = 0; r < s.call->rows; ++r)
    if (sees(s, r)) seen = {least(seen.begin, s.begin[r]), most(seen.end, s.end[r])};
  return seen;
}

inline Seen seen_by_all(const Span& s) {
  Seen seen{0, kSpanTokens};
  for (int r = 0; r < s.call->rows; ++r)
    if (sees(s, r)) seen = {most(seen.begin, s.begin[r]), least(seen.end, s.end[r])};
  return seen;
}

void copy_seen(const uint8_t* values, int dim, int token, Seen seen, uint16_t* out) {
  for (int t = 0; t < kUnitTokens; t += 2) {
    const __mmask32 mask = pair_mask(token + t, seen.begin, seen.end);
    for (int d = 0; d < dim; d += 16) {
      const int at = t * dim + 2 * d;
      const uint16_t* from = reinterpret_cast<const uint16_t*>(values) + at;
      _mm512_store_si512(out + at, _mm512_maskz_loadu_epi16(mask, from));
    }
  }
}

// Whether a unit's values of tokens outside of `seen` are finite.
bool others_are_finite(const uint8_t* values, int dim, int token, Seen seen) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (int t = 0; t < kUnitTokens; t += 2) {
    const __mmask32 others = ~pair_mask(token + t, seen.begin, seen.end);
    if (others == 0) continue;
    for (int d = 0; d < dim; d += 16) {
      const __m512i pairs = _mm512_loadu_si512(values + (t * dim + 2 * d) * 2);
      found |= _mm512_mask_cmpeq_epi16_mask(others, _mm512_and_si512(pairs, exponent), exponent);
    }
  }
  return found == 0;
}

// Where the units' values are. False if a value is not finite that some rows see and others don't.
bool open_values(TileSpan& s) {
  const int dim = s.call->layout.padded_dim, last = s.last_unit;
  const Seen any = seen_by_any(s), all = seen_by_all(s);
  for (int unit = s.first_unit; unit <= last; ++unit) {
    const int token = unit * kUnitTokens;
    s.values[unit] = s.units[unit] + s.call->layout.values;
    if (token < any.begin || token + kUnitTokens > any.end) {
      uint16_t* edge = s.edges[unit == s.first_unit ? 0 : 1];
      copy_seen(s.values[unit], dim, token, any, edge);
      s.values[unit] = reinterpret_cast<const uint8_t*>(edge);
    }
    const bool whole = token >= all.begin && token + kUnitTokens <= all.end;
    if (!whole && !others_are_finite(s.values[unit], dim, token, all)) return false;
  }
  return true;
}

// ---------------------------------------------------------------- scores

inline void store_bf16(uint16_t* p, Floats x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
}

void round_queries(TileSpan& s) {
  const KvLayout& kv = s.call->layout;
  for (int r = 0; r < s.call->rows; ++r)
    for (int d = 0; d < kv.padded_dim; d += 16) {
      const float* query = s.call->queries[r] + d;
      store_bf16(s.rounded + r * kBfloat16Stride + d,
                 d + 16 <= kv.head_dim ? load(query) : load_first(query, kv.head_dim - d));
    }
}

inline void prefetch_lines(const uint8_t* p, int lines) {
  for (int i = 0; i < lines; ++i) prefetch(p + 64 * i);
}

// Products of a block's rows, `row` and following, and the keys of four units (outside of the span's those of
// the nearest), dimensions `begin` .. `end` - 1, `kStep` at a time; to those of other dimensions, if `add`.
template <int kStep>
void score_units(TileSpan& s, int row, int first, int begin, int end, bool add) {
  const uint8_t* keys[kSums];
  const uint8_t* ahead[kSums];
  for (int u = 0; u < kSums; ++u) {
    keys[u] = s.units[most(least(first + u, s.last_unit), s.first_unit)];
    ahead[u] = s.key_ahead[most(first + u, s.first_unit) + kSums];
  }
  float* scores = s.scores + row * kScoreStride + first * kUnitTokens;
  const uint16_t* queries = s.rounded + row * kBfloat16Stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (add) {
    _tile_loadd(0, scores, kScoreStride * 4);
    _tile_loadd(1, scores + 16, kScoreStride * 4);
    _tile_loadd(2, scores + 32, kScoreStride * 4);
    _tile_loadd(3, scores + 48, kScoreStride * 4);
  }
  for (int d = begin; d < end; d += kStep) {
    const int at = d * kUnitTokens * 2;
    _tile_loadd(4, queries + d, kBfloat16Stride * 2);
    _tile_loadd(5, keys[0] + at, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, keys[1] + at, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, keys[2] + at, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, keys[3] + at, 64);
    _tile_dpbf16ps(3, 4, 5);
    if (row > 0) continue;
    for (int u = 0; u < kSums; ++u) prefetch_lines(ahead[u] + at, kStep / 2);
  }
  _tile_stored(0, scores, kScoreStride * 4);
  _tile_stored(1, scores + 16, kScoreStride * 4);
  _tile_stored(2, scores + 32, kScoreStride * 4);
  _tile_stored(3, scores + 48, kScoreStride * 4);
}

template <int kStep>
void score_span(TileSpan& s, int begin, int end, bool add) {
  if (begin == end) return;
  _tile_loadconfig(&(kStep == 32 ? kWideTiles : kNarrowTiles).of[block_rows(s) - 1]);
  for (int unit = s.first_unit / kSums * kSums; unit <= s.last_unit; unit += kSums)
    for (int row = 0; row < s.call->rows; row += kBlockRows)
      score_units<kStep>(s, row, unit, begin, end, add);
}

// ---------------------------------------------------------------- softmax

#include "row_reductions_amx.inl"

// e^(score * factor - maximum), by powers of two.
struct Power {
  Floats factor, offset;
};

// Also tells the state its maximum, given that of the scores without the factor, and a sum to add to: zero,
// or NaN if the maximum is not finite.
inline Power power_of(float factor, float maximum, AttendState& state) {
  constexpr float kUnit = 1.44269504088896341f;  // log2(e)
  state.maximum = maximum * factor;
  state.sum = state.maximum - state.maximum;
  return {broadcast(factor * kUnit), broadcast(state.maximum * -kUnit)};
}

// With an error of 1e-4 of it, a twentieth of what bfloat16 rounds off afterwards; below 2^-60 it is zero.
inline Floats raise(Power power, Floats score) {
  constexpr int kFractionFromFloor = 1 | 8;
  const Floats x = fmadd(score, power.factor, power.offset);
  const __mmask16 large = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-60.0f), _CMP_NLT_UQ);  // NaN too
  const Floats f = {_mm512_reduce_ps(x.v, kFractionFromFloor)};
  Floats p = broadcast(kCubic[3]);
  p = fmadd(p, f, broadcast(kCubic[2]));
  p = fmadd(p, f, broadcast(kCubic[1]));
  p = fmadd(p, f, broadcast(kCubic[0]));
  return {_mm512_maskz_scalef_ps(large, p.v, x.v)};
}

// Turns products of a row into scores with a soft cap.
void cap_scores(const TileSpan& s, float* scores, int first, int end) {
  const Floats scale = broadcast(s.call->scale), cap = broadcast(s.call->softcap);
  for (int t = first; t < end; t += kUnitTokens)
    store(scores + t, mul(cap, hyperbolic_tangent(div(mul(load(scores + t), scale), cap))));
}

// Lanes of the largest of a row's scores, or of its products if there is no soft cap. Here and below two
// units at a time, aligned, do not wait for each other.
Floats largest_scores(TileSpan& s, int row) {
  const int begin = s.begin[row], end = s.end[row], first = begin / kPairTokens * kPairTokens;
  const Floats lowest = broadcast(-__builtin_inff());
  float* scores = s.scores + row * kScoreStride;
  if (s.call->softcap > 0.0f) cap_scores(s, scores, first, end);
  Floats maxima[2] = {lowest, lowest};
  for (int t = first; t < end; t += kPairTokens)
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      const int token = t + u * kUnitTokens;
      maxima[u] = max(maxima[u], replace_hidden(load(scores + token), begin, end, token, lowest));
    }
  return max(maxima[0], maxima[1]);
}

// Turns a row's products into weights e^(score - maximum), rounded; those of tokens that it does not see are
// zero. Gives lanes of their sum: NaN, if a score is.
Floats weigh_scores(TileSpan& s, int row, Power power) {
  const int begin = s.begin[row], end = s.end[row];
  const float* scores = s.scores + row * kScoreStride;
  uint16_t* weights = s.rounded + row * kBfloat16Stride;
  Floats sums[2] = {zero(), zero()};
  for (int t = begin / kPairTokens * kPairTokens; t < end; t += kPairTokens) {
    Floats weight[2];
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      const int token = t + u * kUnitTokens;
      weight[u] = replace_hidden(raise(power, load(scores + token)), begin, end, token, zero());
      sums[u] = add(sums[u], weight[u]);
    }
    _mm512_store_si512(weights + t, (__m512i)_mm512_cvtne2ps_pbh(weight[1].v, weight[0].v));
  }
  return add(sums[0], sums[1]);
}

// Weights of all rows and of all units of the span that any row sees.
void softmax_rows(TileSpan& s, AttendState* states) {
  const int rows = s.call->rows, last = (s.last_unit + 1) * kUnitTokens;
  const float factor = s.call->softcap > 0.0f ? 1.0f : s.call->scale;
  for (int r = 0; r < rows; ++r)
    if (sees(s, r)) s.lanes[r] = largest_scores(s, r);
  reduce_rows<Largest>(s.lanes, rows, s.reduced);
  for (int r = 0; r < rows; ++r) {
    uint16_t* weights = s.rounded + r * kBfloat16Stride;
    const int begin = sees(s, r) ? s.begin[r] / kPairTokens * kPairTokens : last;
    const int end = sees(s, r) ? s.end[r] : last;
    for (int t = s.first_unit * kUnitTokens; t < begin; t += kUnitTokens) store_bf16(weights + t, zero());
    if (sees(s, r)) s.lanes[r] = weigh_scores(s, r, power_of(factor, s.reduced[r], states[r]));
    const int behind = (end + kPairTokens - 1) / kPairTokens * kPairTokens;
    for (int t = behind; t < last; t += kUnitTokens) store_bf16(weights + t, zero());
  }
  reduce_rows<Adding>(s.lanes, rows, s.reduced);
  for (int r = 0; r < rows; ++r)
    if (sees(s, r)) states[r].sum += s.reduced[r];
}

// ---------------------------------------------------------------- weighted values

// Where weighted values are until all are there: scores are not needed any more.
inline float* weighted_of(TileSpan& s, int row) { return s.scores + row * kScoreStride; }

// weighted[d .. d + 16 kBlocks) of a block's rows, `row` and following = weights times values.
template <int kBlocks>
void weigh_units(TileSpan& s, int row, int d) {
  const uint16_t* weights = s.rounded + row * kBfloat16Stride;
  const int64_t stride = 4 * s.call->layout.padded_dim;
  _tile_zero(0);
  if constexpr (kBlocks > 1) _tile_zero(1);
  if constexpr (kBlocks > 2) _tile_zero(2);
  if constexpr (kBlocks > 3) _tile_zero(3);
  for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
    const uint8_t* values = s.values[unit] + 4 * d;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
    _tile_loadd(4, weights + unit * kUnitTokens, kBfloat16Stride * 2);
    _tile_loadd(5, values, stride);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kBlocks > 1) {
      _tile_loadd(6, values + 64, stride);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kBlocks > 2) {
      _tile_loadd(7, values + 128, stride);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kBlocks > 3) {
      _tile_loadd(5, values + 192, stride);
      _tile_dpbf16ps(3, 4, 5);
    }
    if (row > 0) continue;
    for (int pair = 0; pair < kUnitTokens / 2; ++pair) prefetch_lines(ahead + pair * stride, kBlocks);
  }
  float* weighted = weighted_of(s, row) + d;
  _tile_stored(0, weighted, kScoreStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(1, weighted + 16, kScoreStride * 4);
  if constexpr (kBlocks > 2) _tile_stored(2, weighted + 32, kScoreStride * 4);
  if constexpr (kBlocks > 3) _tile_stored(3, weighted + 48, kScoreStride * 4);
}

void weigh_span(TileSpan& s) {
  _tile_loadconfig(&kNarrowTiles.of[block_rows(s) - 1]);
  const int dim = s.call->layout.padded_dim;
  for (int d = 0; d < dim; d += 64)
    for (int row = 0; row < s.call->rows; row += kBlockRows)
      switch (least((dim - d) / 16, 4)) {
        case 1: weigh_units<1>(s, row, d); break;
        case 2: weigh_units<2>(s, row, d); break;
        case 3: weigh_units<3>(s, row, d); break;
        case 4: weigh_units<4>(s, row, d); break;
      }
}

// ---------------------------------------------------------------- the span

using Attend = void(const AttendRows& rows, int span, AttendState* states);

// Each row for itself: what it does not see may be anything.
void attend_each(AttendRows rows, int span, AttendState* states, Attend* attend) {
  const int count = rows.rows;
  rows.rows = 1;
  for (int r = 0; r < count; ++r, ++rows.queries, ++rows.positions) attend(rows, span, states + r);
}

// Of rows that see nothing of the span.
void clear_unseen(const Span& s, AttendState* states) {
  for (int r = 0; r < s.call->rows; ++r)
    if (!sees(s, r)) clear_state(s.call->layout, states[r]);
}

void attend_tiles(const AttendRows& rows, int span, AttendState* states) {
  TileSpan s;
  open_span(rows, span, s);
  clear_unseen(s, states);
  if (s.last_unit < 0) return;
  round_queries(s);
  const int dim = rows.layout.padded_dim, whole = dim / 32 * 32;
  score_span<16>(s, whole, dim, false);
  score_span<32>(s, 0, whole, whole < dim);
  // Here, when memory was asked for the values.
  if (!open_values(s)) return attend_each(rows, span, states, attend_tiles);
  softmax_rows(s, states);
  weigh_span(s);
  _tile_release();
  for (int r = 0; r < rows.rows; ++r)
    for (int d = 0; sees(s, r) && d < dim; d += 16)
      store(states[r].weighted + d, load(weighted_of(s, r) + d));
}

#include "attention_int8_amx.inl"

void attend_span(const AttendRows& rows, int span, AttendState* states) {
  const KvType type = rows.layout.type;
  if (type != KvType::bfloat16 && type != KvType::int8) return gristmill::attend_span(rows, span, states);
  return type == KvType::int8 ? attend_bytes(rows, span, states) : attend_tiles(rows, span, states);
}

}  // namespace attention_amx

void set_attention_tile_kernels(KernelTable& table) {
  table.attend_rows = kMostAttendRows;
  table.attend_span = attention_amx::attend_span;
}
