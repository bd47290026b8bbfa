// Attention over an int8 cache on matrix tiles: up to 16 rows by 16 tokens by 64 dimensions, and by 16
// dimensions by 64 tokens, an instruction.
//
// Included by attention_amx.inl. Queries and weights become whole numbers of 14 bits in two limbs, as in
// attention_int8.inl: sums are exact, so a row's result does not depend on the rows beside it. What a row
// does not see has a weight of zero. A row that sees a number that is not finite gives NaN.

// Tiles 0 .. 3: sums [rows][16]; 4 and 5: limbs [rows][quads][4]; 6 and 7: codes [quads][16][4].
constexpr RowTiles byte_tiles_for(uint8_t quads) {
  RowTiles tiles{};
  for (int r = 0; r < kMostAttendRows; ++r) {
    const uint8_t rows = r + 1;
    const uint16_t limbs = static_cast<uint16_t>(4 * quads);
    tiles.of[r] = {1, 0, {}, {64, 64, 64, 64, limbs, limbs, 64, 64},
                   {rows, rows, rows, rows, rows, rows, quads, quads}};
  }
  return tiles;
}
constexpr RowTiles kByteTiles[] = {byte_tiles_for(4), byte_tiles_for(8), byte_tiles_for(12), byte_tiles_for(16)};

constexpr int kStep = 64;  // dimensions or tokens of one product
constexpr int kGroupUnits = kStep / kUnitTokens;
// Bytes from row to row: at a power of two all rows would fall into the same cache sets.
constexpr int kLimbStride = kSpanTokens + 64;
static_assert(kSpanTokens >= kMostHeadDim, "queries have the stride of weights");

struct ByteSpan : Span {  // the sums of the second limbs are in `scores`
  alignas(64) int32_t firsts[kMostAttendRows * kScoreStride];
  alignas(64) uint8_t limbs[2][kMostAttendRows * kLimbStride];  // of queries, then of weights
  float factors[kMostAttendRows];   // what a sum times its key's scale is multiplied by to be a score
  int32_t offsets[kMostAttendRows]; // what a sum has too much, since keys are stored plus 128
  float scales[kMostAttendRows];    // of the weights
  alignas(64) float key_scales[kSpanTokens];  // of tokens that some row sees; 0 for others
  alignas(64) float value_scales[kSpanTokens];
  // Values as products take them, of four units each: [dim / 16][4 quads of a unit][4 units][16][4].
  alignas(64) uint8_t values[kSpanUnits / kGroupUnits][kStep * kMostHeadDim];
};

// ---------------------------------------------------------------- scores

void split_queries(ByteSpan& s) {
  const KvLayout& kv = s.call->layout;
  for (int r = 0; r < s.call->rows; ++r) {
    const float* row = s.queries + r * kQueryStride;
    Floats peak = zero();
    for (int d = 0; d < kv.padded_dim; d += 16) peak = max_bits(peak, magnitude(load(row + d)));
    const float most = max_bits_lanes(peak);
    const Floats inverse = broadcast(inverse_scale(most, kMostQuery));
    __m512i sums = _mm512_setzero_si512();
    for (int d = 0; d < kv.padded_dim; d += 16) {
      const Floats whole = round_even(mul(load(row + d), inverse));
      const Floats high = round_even(mul(whole, broadcast(1.0f / 128)));
      const int at = r * kLimbStride + d;
      store_limbs(high, fmadd(high, broadcast(-128.0f), whole), s.limbs[0] + at, s.limbs[1] + at);
      sums = _mm512_add_epi32(sums, _mm512_cvtps_epi32(whole.v));
    }
    s.factors[r] = most / kMostQuery;
    s.offsets[r] = _mm512_reduce_add_epi32(sums) * kKeyOffset;
  }
}

// Sums of both limbs of all rows and the keys of every unit, dimensions `begin` .. `end` - 1, `step` at a
// time; to those of other dimensions, if `add`.
void score_bytes(ByteSpan& s, int begin, int end, int step, bool add) {
  if (begin == end) return;
  constexpr int kStride = kScoreStride * 4;
  _tile_loadconfig(&kByteTiles[step / 16 - 1].of[s.call->rows - 1]);
  for (int unit = s.first_unit; unit <= s.last_unit; unit += 2) {
    const int next = least(unit + 1, s.last_unit);
    if (!add)
      for (int u = 0; u < 2; ++u) {
        const uint8_t* ahead = s.units[least(unit + kAheadUnits + u, s.last_unit)];
        prefetch(ahead + s.call->layout.key_scales);
        prefetch(ahead + s.call->layout.value_scales);
      }
    int32_t* firsts = s.firsts + unit * kUnitTokens;
    float* seconds = s.scores + unit * kUnitTokens;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (add) {
      _tile_loadd(0, firsts, kStride);
      _tile_loadd(1, seconds, kStride);
      _tile_loadd(2, firsts + 16, kStride);
      _tile_loadd(3, seconds + 16, kStride);
    }
    for (int d = begin; d < end; d += step) {
      const int at = d * kUnitTokens;
      _tile_loadd(4, s.limbs[0] + d, kLimbStride);
      _tile_loadd(6, s.units[unit] + at, 64);
      _tile_dpbsud(0, 4, 6);
      _tile_loadd(5, s.limbs[1] + d, kLimbStride);
      _tile_dpbsud(1, 5, 6);
      _tile_loadd(7, s.units[next] + at, 64);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbsud(3, 5, 7);
      for (int u = 0; u < 2; ++u)
        for (int i = 0; i < step / 4; ++i) prefetch(s.key_ahead[unit + kAheadUnits + u] + at + 64 * i);
    }
    _tile_stored(0, firsts, kStride);
    _tile_stored(1, seconds, kStride);
    _tile_stored(2, firsts + 16, kStride);
    _tile_stored(3, seconds + 16, kStride);
  }
}

// ---------------------------------------------------------------- softmax

// Scales of the tokens that some row sees; false if one is not finite.
bool open_scales(ByteSpan& s, Seen seen) {
  const KvLayout& kv = s.call->layout;
  __mmask16 found = 0;
  const __m512 limit = _mm512_set1_ps(__FLT_MAX__);
  for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
    const int t = unit * kUnitTokens;
    const Floats keys = load(reinterpret_cast<const float*>(s.units[unit] + kv.key_scales));
    const Floats values = load(reinterpret_cast<const float*>(s.units[unit] + kv.value_scales));
    const Floats key = replace_hidden(keys, seen.begin, seen.end, t, zero());
    const Floats value = replace_hidden(values, seen.begin, seen.end, t, zero());
    found |= _mm512_cmp_ps_mask(key.v, limit, _CMP_NLE_UQ) | _mm512_cmp_ps_mask(value.v, limit, _CMP_NLE_UQ);
    store(s.key_scales + t, key);
    store(s.value_scales + t, value);
  }
  return found == 0;
}

// A row's sums of limbs become scores without their factor, or with it and a soft cap; from `first` to
// `behind`, those of tokens that the row doesn't see -inf. Returns their maximum.
float join_limbs(ByteSpan& s, int row, int first, int behind, Floats factor) {
  const int begin = s.begin[row], end = s.end[row];
  const bool capped = s.call->softcap > 0.0f;
  const Floats lowest = broadcast(-__builtin_inff()), cap = broadcast(s.call->softcap);
  const __m512i offset = _mm512_set1_epi32(s.offsets[row]);
  float* scores = s.scores + row * kScoreStride;
  const int32_t* firsts = s.firsts + row * kScoreStride;
  Floats maxima = lowest;
  int t = first;
  for (; t + kUnitTokens <= begin; t += kUnitTokens) store(scores + t, lowest);
  for (; t < end; t += kUnitTokens) {
    const __m512i high = _mm512_slli_epi32(_mm512_load_si512(firsts + t), 7);
    const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(high, _mm512_load_si512(scores + t)), offset);
    Floats score = mul({_mm512_cvtepi32_ps(sum)}, load(s.key_scales + t));
    if (capped) score = mul(cap, hyperbolic_tangent(div(mul(score, factor), cap)));
    score = replace_hidden(score, begin, end, t, lowest);
    maxima = max(maxima, score);
    store(scores + t, score);
  }
  for (; t < behind; t += kUnitTokens) store(scores + t, lowest);
  return _mm512_reduce_max_ps(maxima.v);
}

// Limbs of weights that are not negative, the largest of them `most`. Packing leaves the quads of a step's
// tokens in the order of `values`.
void split_weights(const float* weights, int first, int behind, float most, uint8_t* high, uint8_t* low) {
  const __m512 inverse = _mm512_set1_ps(inverse_scale(most, kMostWeight));
  const __m512i mask = _mm512_set1_epi16(127);
  for (int t = first; t < behind; t += kStep) {
    __m512i whole[kGroupUnits];
#pragma GCC unroll 4
    for (int u = 0; u < kGroupUnits; ++u)
      whole[u] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights + t + u * kUnitTokens), inverse));
    const __m512i a = _mm512_packus_epi32(whole[0], whole[1]), b = _mm512_packus_epi32(whole[2], whole[3]);
    const __m512i a_high = _mm512_srli_epi16(a, 7), b_high = _mm512_srli_epi16(b, 7);
    const __m512i a_low = _mm512_and_si512(a, mask), b_low = _mm512_and_si512(b, mask);
    _mm512_store_si512(high + t, _mm512_packus_epi16(a_high, b_high));
    _mm512_store_si512(low + t, _mm512_packus_epi16(a_low, b_low));
  }
}

// Turns a row's sums into limbs of its weights, e^(score - maximum) times the values' scales.
void softmax_bytes(ByteSpan& s, int row, int first, int behind, AttendState& state) {
  float* scores = s.scores + row * kScoreStride;
  // Above zero, so that -inf stays what it is.
  const float scale = s.factors[row] * s.call->scale;
  const float factor = scale < __FLT_MIN__ ? __FLT_MIN__ : scale;
  const float maximum = join_limbs(s, row, first, behind, broadcast(factor));
  const Power power = power_of(s.call->softcap > 0.0f ? 1.0f : factor, maximum, state);
  Floats sums = zero(), peak = zero();
  for (int t = first; t < behind; t += kUnitTokens) {
    Floats weight = raise(power, load(scores + t));
    sums = add(sums, weight);
    weight = mul(weight, load(s.value_scales + t));
    peak = max(peak, weight);
    store(scores + t, weight);
  }
  state.sum += _mm512_reduce_add_ps(sums.v);
  const float most = _mm512_reduce_max_ps(peak.v);
  s.scales[row] = most / kMostWeight;
  split_weights(scores, first, behind, most, s.limbs[0] + row * kLimbStride, s.limbs[1] + row * kLimbStride);
}

// Limbs of all rows, those of tokens that a row does not see zero.
void softmax_all_bytes(ByteSpan& s, AttendState* states) {
  const int start = s.first_unit / kGroupUnits * kStep, last = (s.last_unit / kGroupUnits + 1) * kStep;
  const __m512i none = _mm512_setzero_si512();
  for (int r = 0; r < s.call->rows; ++r) {
    const bool any = sees(s, r);
    const int first = any ? s.begin[r] / kStep * kStep : last;
    const int behind = any ? (s.end[r] + kStep - 1) / kStep * kStep : last;
    if (any) softmax_bytes(s, r, first, behind, states[r]);
    for (int t = start; t < last; t += kStep) {
      if (t >= first && t < behind) continue;
      for (uint8_t* limbs : s.limbs) _mm512_store_si512(limbs + r * kLimbStride + t, none);
    }
  }
}

// ---------------------------------------------------------------- weighted values

void copy_values(ByteSpan& s) {
  const int dim = s.call->layout.padded_dim;
  for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
    const uint8_t* from = s.units[unit] + s.call->layout.values;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits];
    uint8_t* to = s.values[unit / kGroupUnits] + unit % kGroupUnits * 64;
    for (int quad = 0; quad < kUnitTokens / 4; ++quad, to += kGroupUnits * 64)
      for (int d = 0; d < dim; d += 16, from += 64, ahead += 64) {
        prefetch(ahead);
        _mm512_store_si512(to + d * kStep, _mm512_loadu_si512(from));
      }
  }
}

// Sums of both limbs of weights times values, dimensions d .. d + 16 kBlocks - 1 of all rows.
template <int kBlocks>
void weigh_bytes(ByteSpan& s, int d) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks > 1) _tile_zero(2);
  if constexpr (kBlocks > 1) _tile_zero(3);
  for (int group = s.first_unit / kGroupUnits; group <= s.last_unit / kGroupUnits; ++group) {
    const uint8_t* values = s.values[group] + d * kStep;
    _tile_loadd(4, s.limbs[0] + group * kStep, kLimbStride);
    _tile_loadd(6, values, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(5, s.limbs[1] + group * kStep, kLimbStride);
    _tile_dpbusd(1, 5, 6);
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, values + 16 * kStep, 64);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  }
  _tile_stored(0, s.firsts + d, kScoreStride * 4);
  _tile_stored(1, s.scores + d, kScoreStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(2, s.firsts + d + 16, kScoreStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(3, s.scores + d + 16, kScoreStride * 4);
}

void weigh_all_bytes(ByteSpan& s, AttendState* states) {
  const int dim = s.call->layout.padded_dim;
  _tile_loadconfig(&kByteTiles[kStep / 16 - 1].of[s.call->rows - 1]);
  for (int d = 0; d + 32 <= dim; d += 32) weigh_bytes<2>(s, d);
  if (dim % 32 != 0) weigh_bytes<1>(s, dim - 16);
  _tile_release();
  for (int r = 0; r < s.call->rows; ++r) {
    if (!sees(s, r)) continue;
    const Floats scale = broadcast(s.scales[r]);
    for (int d = 0; d < dim; d += 16) {
      const int at = r * kScoreStride + d;
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(s.firsts + at), 7);
      const __m512i sum = _mm512_add_epi32(high, _mm512_load_si512(s.scores + at));
      store(states[r].weighted + d, mul({_mm512_cvtepi32_ps(sum)}, scale));
    }
  }
}

// ---------------------------------------------------------------- the span

void attend_bytes(const AttendRows& rows, int span, AttendState* states) {
  ByteSpan s;
  open_span(rows, span, s);
  if (s.last_unit < 0) return;
  copy_queries(rows, s);
  split_queries(s);
  const int dim = rows.layout.padded_dim, whole = dim / kStep * kStep;
  score_bytes(s, whole, dim, dim - whole, false);
  score_bytes(s, 0, whole, kStep, whole < dim);
  if (!open_scales(s, seen_by_any(s))) {
    if (rows.rows > 1) return attend_each(rows, span, states, attend_bytes);
    states->sum = __builtin_nanf("");
    return _tile_release();
  }
  softmax_all_bytes(s, states);
  copy_values(s);
  weigh_all_bytes(s, states);
}
