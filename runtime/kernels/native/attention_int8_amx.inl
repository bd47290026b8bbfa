// Attention over an int8 cache on matrix tiles: up to 16 rows by 16 tokens by 64 dimensions, and by 16
// dimensions by 16 tokens, an instruction.
//
// Included by attention_amx.inl. Queries and weights become whole numbers of 14 bits in two limbs, as in
// attention_int8.inl: sums are exact, so a row's result does not depend on the rows beside it. What a row
// does not see has a weight of zero. A row that sees a number that is not finite gives NaN.

// Tiles 0 .. 3: sums [rows][16]; 4 and 5: limbs [rows][quads][4]; 6 and 7: codes [quads][16][4]. With few rows
// a tile has both limbs of all rows.
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

constexpr int kGroupUnits = 4;
constexpr int kGroupTokens = kGroupUnits * kUnitTokens;
constexpr int kFewRows = kMostAttendRows / 2;  // both limbs of so many rows fit one tile
// Numbers from row to row: at a power of two all rows would fall into the same cache sets.
constexpr int kGroupStride = kGroupTokens + 16;
constexpr int kLimbStride = kSpanTokens + 64;
static_assert(kSpanTokens >= kMostHeadDim, "queries have the stride of weights");

struct ByteSpan : Span {
  // All rows' first limbs, then all rows' second limbs.
  alignas(64) int32_t sums[2 * kMostAttendRows * kGroupStride];  // of four units, or up to 64 dimensions
  alignas(64) uint8_t limbs[2 * kMostAttendRows * kLimbStride];  // of queries, then of weights
  float factors[kMostAttendRows];    // what a sum times its key's scale is multiplied by to be a score
  int32_t offsets[kMostAttendRows];  // what a sum has too much, since keys are stored plus 128
  float scales[kMostAttendRows];     // of the weights
  Floats maxima[kMostAttendRows];    // of scores, then of weights
  Floats totals[kMostAttendRows];    // sums of weights
  alignas(64) float key_scales[kSpanTokens];  // of tokens that some row sees; 0 for others
  alignas(64) float value_scales[kSpanTokens];
  alignas(64) uint8_t values[2][2 * kGroupTokens * 16];  // of two groups and 32 dimensions
};

// ---------------------------------------------------------------- scores

void split_queries(ByteSpan& s) {
  const KvLayout& kv = s.call->layout;
  for (int r = 0; r < s.call->rows; ++r) {
    const float* row = s.queries + r * kQueryStride;
    Floats peak = zero();
    for (int d = 0; d < kv.padded_dim; d += 16) peak = max_bits(peak, magnitude(load(row + d)));
    const float most = max_bits_lanes(peak);
    const __m512 inverse = _mm512_set1_ps(inverse_scale(most, kMostQuery));
    __m512i sums = _mm512_setzero_si512();
    for (int d = 0; d < kv.padded_dim; d += 16) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(row + d), inverse));
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
      const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7));
      uint8_t* at = s.limbs + r * kLimbStride + d;
      _mm_store_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(high));
      _mm_store_si128(reinterpret_cast<__m128i*>(at + s.call->rows * kLimbStride), _mm512_cvtepi32_epi8(low));
      sums = _mm512_add_epi32(sums, whole);
    }
    // Above zero, so that -inf stays what it is.
    const float factor = most / kMostQuery * s.call->scale;
    s.factors[r] = factor < __FLT_MIN__ ? __FLT_MIN__ : factor;
    s.offsets[r] = _mm512_reduce_add_epi32(sums) * kKeyOffset;
  }
}

inline bool few(const Span& s) { return s.call->rows <= kFewRows; }

void configure(const Span& s, int step) {
  const int rows = few(s) ? 2 * s.call->rows : s.call->rows;
  _tile_loadconfig(&kByteTiles[step / 16 - 1].of[rows - 1]);
}

// Keys of a group's units (outside of the span those of the nearest), and what is needed later.
struct GroupKeys {
  const uint8_t* of[kGroupUnits];
  const uint8_t* ahead[kGroupUnits];
};

GroupKeys open_keys(const ByteSpan& s, int first) {
  const KvLayout& kv = s.call->layout;
  GroupKeys keys;
  for (int u = 0; u < kGroupUnits; ++u) {
    const int unit = most(first + u, s.first_unit);
    keys.of[u] = s.units[least(unit, s.last_unit)];
    keys.ahead[u] = s.key_ahead[unit + kAheadUnits];
    const uint8_t* scales = s.units[least(unit + kAheadUnits, s.last_unit)];
    prefetch(scales + kv.key_scales);
    prefetch(scales + kv.value_scales);
  }
  return keys;
}

// Sums of all rows and a group's keys, `step` dimensions at a time.
void score_few(ByteSpan& s, const GroupKeys& keys, int step) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < s.call->layout.padded_dim; d += step) {
    const int at = d * kUnitTokens;
    _tile_loadd(4, s.limbs + d, kLimbStride);
    _tile_loadd(6, keys.of[0] + at, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, keys.of[1] + at, 64);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(6, keys.of[2] + at, 64);
    _tile_dpbsud(2, 4, 6);
    _tile_loadd(7, keys.of[3] + at, 64);
    _tile_dpbsud(3, 4, 7);
    for (int u = 0; u < kGroupUnits; ++u)
      for (int i = 0; i < step / 4; ++i) prefetch(keys.ahead[u] + at + 64 * i);
  }
  _tile_stored(0, s.sums, kGroupStride * 4);
  _tile_stored(1, s.sums + 16, kGroupStride * 4);
  _tile_stored(2, s.sums + 32, kGroupStride * 4);
  _tile_stored(3, s.sums + 48, kGroupStride * 4);
}

// The same for two units, `pair` and the next.
void score_pair(ByteSpan& s, const GroupKeys& keys, int pair, int step) {
  const uint8_t* seconds = s.limbs + s.call->rows * kLimbStride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < s.call->layout.padded_dim; d += step) {
    const int at = d * kUnitTokens;
    _tile_loadd(4, s.limbs + d, kLimbStride);
    _tile_loadd(6, keys.of[pair] + at, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(5, seconds + d, kLimbStride);
    _tile_dpbsud(1, 5, 6);
    _tile_loadd(7, keys.of[pair + 1] + at, 64);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 5, 7);
    for (int u = 0; u < 2; ++u)
      for (int i = 0; i < step / 4; ++i) prefetch(keys.ahead[pair + u] + at + 64 * i);
  }
  int32_t* sums = s.sums + pair * kUnitTokens;
  int32_t* second_sums = sums + s.call->rows * kGroupStride;
  _tile_stored(0, sums, kGroupStride * 4);
  _tile_stored(1, second_sums, kGroupStride * 4);
  _tile_stored(2, sums + 16, kGroupStride * 4);
  _tile_stored(3, second_sums + 16, kGroupStride * 4);
}

void score_group(ByteSpan& s, int first, int step) {
  const GroupKeys keys = open_keys(s, first);
  if (few(s)) return score_few(s, keys, step);
  score_pair(s, keys, 0, step);
  score_pair(s, keys, 2, step);
}

inline __m512i join_limbs(const ByteSpan& s, int at) {
  const __m512i high = _mm512_slli_epi32(_mm512_load_si512(s.sums + at), 7);
  return _mm512_add_epi32(high, _mm512_load_si512(s.sums + at + s.call->rows * kGroupStride));
}

// A group's sums become scores without their factor, or with it and a soft cap; those of tokens that a row
// doesn't see become -inf.
void join_group(ByteSpan& s, int first) {
  const bool capped = s.call->softcap > 0.0f;
  const Floats lowest = broadcast(-__builtin_inff()), cap = broadcast(s.call->softcap);
  for (int r = 0; r < s.call->rows; ++r) {
    const __m512i offset = _mm512_set1_epi32(s.offsets[r]);
    Floats maxima = s.maxima[r];
    for (int u = 0; u < kGroupUnits; ++u) {
      const int t = (first + u) * kUnitTokens;
      const __m512i sum = _mm512_sub_epi32(join_limbs(s, r * kGroupStride + u * kUnitTokens), offset);
      Floats score = mul({_mm512_cvtepi32_ps(sum)}, load(s.key_scales + t));
      if (capped) score = mul(cap, hyperbolic_tangent(div(mul(score, broadcast(s.factors[r])), cap)));
      score = replace_hidden(score, s.begin[r], s.end[r], t, lowest);
      maxima = max(maxima, score);
      store(s.scores + r * kScoreStride + t, score);
    }
    s.maxima[r] = maxima;
  }
}

// Scales of a group's tokens that some row sees; false if one is not finite.
bool open_scales(ByteSpan& s, int first, Seen seen) {
  const KvLayout& kv = s.call->layout;
  const __m512 limit = _mm512_set1_ps(__FLT_MAX__);
  __mmask16 found = 0;
  for (int unit = first; unit < first + kGroupUnits; ++unit) {
    const uint8_t* from = s.units[most(least(unit, s.last_unit), s.first_unit)];
    const int t = unit * kUnitTokens;
    const Floats keys = load(reinterpret_cast<const float*>(from + kv.key_scales));
    const Floats values = load(reinterpret_cast<const float*>(from + kv.value_scales));
    const Floats key = replace_hidden(keys, seen.begin, seen.end, t, zero());
    const Floats value = replace_hidden(values, seen.begin, seen.end, t, zero());
    found |= _mm512_cmp_ps_mask(key.v, limit, _CMP_NLE_UQ) | _mm512_cmp_ps_mask(value.v, limit, _CMP_NLE_UQ);
    store(s.key_scales + t, key);
    store(s.value_scales + t, value);
  }
  return found == 0;
}

// False if a row may see a number that is not finite.
bool score_all_bytes(ByteSpan& s) {
  const int dim = s.call->layout.padded_dim;
  const int step = dim % 64 == 0 ? 64 : dim % 48 == 0 ? 48 : dim % 32 == 0 ? 32 : 16;
  const Seen seen = seen_by_any(s);
  configure(s, step);
  for (int r = 0; r < s.call->rows; ++r) s.maxima[r] = broadcast(-__builtin_inff());
  for (int unit = s.first_unit / kGroupUnits * kGroupUnits; unit <= s.last_unit; unit += kGroupUnits) {
    score_group(s, unit, step);
    if (!open_scales(s, unit, seen)) return false;
    join_group(s, unit);
  }
  return true;
}

// ---------------------------------------------------------------- softmax

// Limbs of weights that are not negative, the largest of them `most`. Packing leaves quads of tokens in the
// order 0, 4, 8, 12, 1, 5 and so on.
void split_weights(const float* weights, int first, int behind, float most, uint8_t* high, uint8_t* low) {
  const __m512 inverse = _mm512_set1_ps(inverse_scale(most, kMostWeight));
  const __m512i mask = _mm512_set1_epi16(127);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int t = first; t < behind; t += kGroupTokens) {
    __m512i whole[kGroupUnits];
#pragma GCC unroll 4
    for (int u = 0; u < kGroupUnits; ++u)
      whole[u] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights + t + u * kUnitTokens), inverse));
    const __m512i a = _mm512_packus_epi32(whole[0], whole[1]), b = _mm512_packus_epi32(whole[2], whole[3]);
    const __m512i highs = _mm512_packus_epi16(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7));
    const __m512i lows = _mm512_packus_epi16(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
    _mm512_store_si512(high + t, _mm512_permutexvar_epi32(order, highs));
    _mm512_store_si512(low + t, _mm512_permutexvar_epi32(order, lows));
  }
}

// Turns a row's scores into weights, e^(score - maximum) times the values' scales. Their sums and their largest
// are left in vectors: to reduce these row by row would make every row wait.
void weigh_scores(ByteSpan& s, int row, int first, int behind, AttendState& state) {
  float* scores = s.scores + row * kScoreStride;
  const float factor = s.call->softcap > 0.0f ? 1.0f : s.factors[row];
  const Power power = power_of(factor, _mm512_reduce_max_ps(s.maxima[row].v), state);
  Floats sums = zero(), peak = zero();
  for (int t = first; t < behind; t += kUnitTokens) {
    Floats weight = raise(power, load(scores + t));
    sums = add(sums, weight);
    weight = mul(weight, load(s.value_scales + t));
    peak = max(peak, weight);
    store(scores + t, weight);
  }
  s.totals[row] = sums;
  s.maxima[row] = peak;
}

// Limbs of all rows, those of tokens that a row does not see zero.
void softmax_all_bytes(ByteSpan& s, AttendState* states) {
  const int start = s.first_unit / kGroupUnits * kGroupTokens;
  const int last = (s.last_unit / kGroupUnits + 1) * kGroupTokens;
  const __m512i none = _mm512_setzero_si512();
  int first[kMostAttendRows], behind[kMostAttendRows];
  for (int r = 0; r < s.call->rows; ++r) {
    first[r] = sees(s, r) ? s.begin[r] / kGroupTokens * kGroupTokens : last;
    behind[r] = sees(s, r) ? (s.end[r] + kGroupTokens - 1) / kGroupTokens * kGroupTokens : last;
    if (sees(s, r)) weigh_scores(s, r, first[r], behind[r], states[r]);
  }
  for (int r = 0; r < s.call->rows; ++r) {
    uint8_t* limbs[2] = {s.limbs + r * kLimbStride, s.limbs + (s.call->rows + r) * kLimbStride};
    if (sees(s, r)) {
      const float most = _mm512_reduce_max_ps(s.maxima[r].v);
      states[r].sum += _mm512_reduce_add_ps(s.totals[r].v);
      s.scales[r] = most / kMostWeight;
      split_weights(s.scores + r * kScoreStride, first[r], behind[r], most, limbs[0], limbs[1]);
    }
    for (int t = start; t < last; t += kGroupTokens) {
      if (t >= first[r] && t < behind[r]) continue;
      _mm512_store_si512(limbs[0] + t, none);
      _mm512_store_si512(limbs[1] + t, none);
    }
  }
}

// ---------------------------------------------------------------- weighted values

// Values of a group's units, dimensions d .. d + 16 kBlocks - 1: [kBlocks][quads of tokens][16][4]. Those of
// units outside of the span stay what they were: their weights are zero.
template <int kBlocks>
void copy_group(ByteSpan& s, int first, int d) {
  const int64_t quad = 4 * s.call->layout.padded_dim;
  const int offset = s.call->layout.values + 4 * d;
  const int end = least(first + kGroupUnits, s.last_unit + 1);
  for (int unit = most(first, s.first_unit); unit < end; ++unit) {
    const uint8_t* values = s.units[unit] + offset;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
    uint8_t* to = s.values[first / kGroupUnits % 2] + (unit - first) * kUnitTokens * 16;
    for (int i = 0; i < kUnitTokens / 4; ++i)
      for (int c = 0; c < kBlocks; ++c) {
        _mm512_store_si512(to + c * kGroupTokens * 16 + i * 64, _mm512_loadu_si512(values + i * quad + 64 * c));
        prefetch(ahead + i * quad + 64 * c);
      }
  }
}

// Sums of a span's weights times values, 16 kBlocks dimensions from d on. What was just stored is not there yet:
// the next group's values are copied before the products of this one.
template <int kBlocks>
void add_groups(ByteSpan& s, int d) {
  const uint8_t* seconds = s.limbs + s.call->rows * kLimbStride;
  const int start = s.first_unit / kGroupUnits * kGroupUnits;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks > 1) _tile_zero(2);
  if constexpr (kBlocks > 1) _tile_zero(3);
  copy_group<kBlocks>(s, start, d);
  for (int first = start; first <= s.last_unit; first += kGroupUnits) {
    copy_group<kBlocks>(s, first + kGroupUnits, d);
    const uint8_t* values = s.values[first / kGroupUnits % 2];
    _tile_loadd(4, s.limbs + first * kUnitTokens, kLimbStride);
    _tile_loadd(6, values, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(5, seconds + first * kUnitTokens, kLimbStride);
    _tile_dpbusd(1, 5, 6);
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, values + kGroupTokens * 16, 64);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  }
  int32_t* second_sums = s.sums + s.call->rows * kGroupStride;
  _tile_stored(0, s.sums, kGroupStride * 4);
  _tile_stored(1, second_sums, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(2, s.sums + 16, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(3, second_sums + 16, kGroupStride * 4);
}

// The same with few rows, of values where they are: that costs less than copying.
template <int kBlocks>
void add_units(ByteSpan& s, int d) {
  const int64_t quad = 4 * s.call->layout.padded_dim;
  const int offset = s.call->layout.values + 4 * d;
  _tile_zero(0);
  if constexpr (kBlocks > 1) _tile_zero(1);
  if constexpr (kBlocks > 2) _tile_zero(2);
  if constexpr (kBlocks > 3) _tile_zero(3);
  for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
    const uint8_t* values = s.units[unit] + offset;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
    _tile_loadd(4, s.limbs + unit * kUnitTokens, kLimbStride);
    _tile_loadd(6, values, quad);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, values + 64, quad);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (kBlocks > 2) {
      _tile_loadd(6, values + 128, quad);
      _tile_dpbusd(2, 4, 6);
    }
    if constexpr (kBlocks > 3) {
      _tile_loadd(7, values + 192, quad);
      _tile_dpbusd(3, 4, 7);
    }
    for (int i = 0; i < kUnitTokens / 4; ++i) prefetch_lines<kBlocks>(ahead + i * quad);
  }
  _tile_stored(0, s.sums, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(1, s.sums + 16, kGroupStride * 4);
  if constexpr (kBlocks > 2) _tile_stored(2, s.sums + 32, kGroupStride * 4);
  if constexpr (kBlocks > 3) _tile_stored(3, s.sums + 48, kGroupStride * 4);
}

// weighted[d .. d + 16 blocks) of all rows: from the sums of limbs.
void store_weighted(const ByteSpan& s, int d, int blocks, AttendState* states) {
  for (int r = 0; r < s.call->rows; ++r) {
    if (!sees(s, r)) continue;
    for (int c = 0; c < blocks; ++c) {
      const Floats sum = {_mm512_cvtepi32_ps(join_limbs(s, r * kGroupStride + 16 * c))};
      store(states[r].weighted + d + 16 * c, mul(sum, broadcast(s.scales[r])));
    }
  }
}

void weigh_all_bytes(ByteSpan& s, AttendState* states) {
  const int dim = s.call->layout.padded_dim, most_blocks = few(s) ? 4 : 2;
  configure(s, few(s) ? kUnitTokens : kGroupTokens);
  for (int d = 0, blocks; d < dim; d += 16 * blocks) {
    blocks = least((dim - d) / 16, most_blocks);
    if (!few(s)) {
      blocks == 2 ? add_groups<2>(s, d) : add_groups<1>(s, d);
    } else {
      switch (blocks) {
        case 1: add_units<1>(s, d); break;
        case 2: add_units<2>(s, d); break;
        case 3: add_units<3>(s, d); break;
        case 4: add_units<4>(s, d); break;
      }
    }
    store_weighted(s, d, blocks, states);
  }
}

// ---------------------------------------------------------------- the span

void attend_bytes(const AttendRows& rows, int span, AttendState* states) {
  ByteSpan s;
  open_span(rows, span, s);
  if (s.last_unit < 0) return;
  copy_queries(rows, s);
  split_queries(s);
  if (!score_all_bytes(s)) {
    if (rows.rows > 1) return attend_each(rows, span, states, attend_bytes);
    states->sum = __builtin_nanf("");
    return _tile_release();
}
  softmax_all_bytes(s, states);
  weigh_all_bytes(s, states);
  _tile_release();
}
