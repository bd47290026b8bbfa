// Attention over an int8 cache on matrix tiles.
//
// Included by attention_amx.inl. Queries and weights become whole numbers of 14 bits in two limbs, as in
// attention_int8.inl: sums are exact, so a row's result does not depend on the rows beside it. What a row
// does not see has a weight of zero. A row that sees a number that is not finite gives NaN.

#include "byte_products_amx.inl"

// ---------------------------------------------------------------- scores

void split_queries(ByteSpan& s) {
  const KvLayout& kv = s.call->layout;
  for (int r = 0; r < s.call->rows; ++r) {
    const float* query = s.call->queries[r];
    const auto part = [&](int d) { return load_first(query + d, kv.head_dim - d); };
    Floats peak = zero();
    for (int d = 0; d < kv.padded_dim; d += 16) peak = max_bits(peak, magnitude(part(d)));
    const float most = max_bits_lanes(peak);
    const __m512 inverse = _mm512_set1_ps(inverse_scale(most, kMostQuery));
    __m512i sums = _mm512_setzero_si512();
    for (int d = 0; d < kv.padded_dim; d += 16) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(part(d).v, inverse));
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
      const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7));
      uint8_t* at = row_limbs(s, r) + d;
      _mm_store_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(high));
      _mm_store_si128(reinterpret_cast<__m128i*>(at + second_limbs(s)), _mm512_cvtepi32_epi8(low));
      sums = _mm512_add_epi32(sums, whole);
    }
    // Above zero, so that -inf stays what it is.
    const float factor = most / kMostQuery * s.call->scale;
    s.factors[r] = factor < __FLT_MIN__ ? __FLT_MIN__ : factor;
    s.offsets[r] = _mm512_reduce_add_epi32(sums) * kKeyOffset;
  }
}

// A block's and a group's sums become scores without their factor, or with it and a soft cap; those of tokens
// that a row doesn't see become -inf.
void join_group(ByteSpan& s, int row, int first) {
  const bool capped = s.call->softcap > 0.0f;
  const Floats lowest = broadcast(-__builtin_inff()), cap = broadcast(s.call->softcap);
  for (int r = row; r < least(row + kBlockRows, s.call->rows); ++r) {
    const __m512i offset = _mm512_set1_epi32(s.offsets[r]);
    Floats maxima = s.maxima[r];
    for (int u = 0; u < kGroupUnits; ++u) {
      const int t = (first + u) * kUnitTokens;
      const __m512i joined = join_limbs(s, s.sums + (r - row) * kGroupStride + u * kUnitTokens);
      const __m512i sum = _mm512_sub_epi32(joined, offset);
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
    const GroupKeys keys = open_keys(s, unit);
    if (!open_scales(s, unit, seen)) return false;
    for (int row = 0; row < s.call->rows; row += kBlockRows) {
      score_group(s, keys, row, step);
      join_group(s, row, unit);
    }
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

// Turns a row's scores into weights, e^(score - maximum) times the values' scales. Their sum and their
// largest are left in vectors: reduced here, they would make every row wait.
void weigh_scores(ByteSpan& s, int row, int first, int behind, AttendState& state) {
  float* scores = s.scores + row * kScoreStride;
  const float factor = s.call->softcap > 0.0f ? 1.0f : s.factors[row];
  const Power power = power_of(factor, s.largest[row], state);
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
  reduce_rows<Largest>(s.maxima, s.call->rows, s.largest);
  for (int r = 0; r < s.call->rows; ++r) {
    first[r] = sees(s, r) ? s.begin[r] / kGroupTokens * kGroupTokens : last;
    behind[r] = sees(s, r) ? (s.end[r] + kGroupTokens - 1) / kGroupTokens * kGroupTokens : last;
    if (sees(s, r)) weigh_scores(s, r, first[r], behind[r], states[r]);
  }
  reduce_rows<Largest>(s.maxima, s.call->rows, s.largest);
  reduce_rows<Adding>(s.totals, s.call->rows, s.total);
  for (int r = 0; r < s.call->rows; ++r) {
    uint8_t* limbs[2] = {row_limbs(s, r), row_limbs(s, r) + second_limbs(s)};
    if (sees(s, r)) {
      const float most = s.largest[r];
      states[r].sum += s.total[r];
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

// weighted[d .. d + 16 blocks) of a block's rows, `row` and following: from the sums of limbs.
void store_weighted(const ByteSpan& s, int row, int d, int blocks, AttendState* states) {
  for (int r = row; r < least(row + kBlockRows, s.call->rows); ++r) {
    if (!sees(s, r)) continue;
    for (int c = 0; c < blocks; ++c) {
      const Floats sum = {_mm512_cvtepi32_ps(join_limbs(s, s.sums + (r - row) * kGroupStride + 16 * c))};
      store(states[r].weighted + d + 16 * c, mul(sum, broadcast(s.scales[r])));
    }
  }
}

template <int kBlocks>
void weigh_few(ByteSpan& s, int d, AttendState* states) {
  add_units<kBlocks>(s, d);
  store_weighted(s, 0, d, kBlocks, states);
}

template <int kBlocks>
void weigh_many(ByteSpan& s, int d, AttendState* states) {
  copy_groups<kBlocks>(s, d);
  for (int row = 0; row < s.call->rows; row += kBlockRows) {
    add_groups<kBlocks>(s, row);
    store_weighted(s, row, d, kBlocks, states);
  }
}

void weigh_all_bytes(ByteSpan& s, AttendState* states) {
  const int dim = s.call->layout.padded_dim, most_blocks = few(s) ? 4 : 2;
  configure(s, few(s) ? kUnitTokens : kGroupTokens);
  for (int d = 0, blocks; d < dim; d += 16 * blocks) {
    blocks = least((dim - d) / 16, most_blocks);
    if (!few(s)) {
      blocks == 2 ? weigh_many<2>(s, d, states) : weigh_many<1>(s, d, states);
    } else {
      switch (blocks) {
        case 1: weigh_few<1>(s, d, states); break;
        case 2: weigh_few<2>(s, d, states); break;
        case 3: weigh_few<3>(s, d, states); break;
        case 4: weigh_few<4>(s, d, states); break;
      }
    }
  }
}

// ---------------------------------------------------------------- the span

void attend_bytes(const AttendRows& rows, int span, AttendState* states) {
  ByteSpan s;
  open_span(rows, span, s);
  clear_unseen(s, states);
  if (s.last_unit < 0) return;
  split_queries(s);
  if (!score_all_bytes(s)) {
    if (rows.rows > 1) return attend_each(rows, span, states, attend_bytes);
    clear_state(rows.layout, *states);
    states->sum = __builtin_nanf("");
    return _tile_release();
  }
  softmax_all_bytes(s, states);
  weigh_all_bytes(s, states);
  _tile_release();
}
