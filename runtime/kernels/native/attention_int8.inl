// Scores and weighted values of an int8 cache by dot products of bytes.
//
// Included by attention.inl. Queries and weights become whole numbers of 14 bits, a hundredth of the
// cache's own rounding, and these two limbs: number = 128 * first + second. The sums are exact, so a
// row's result does not depend on the rows beside it, and a weight of zero hides whatever a token holds.

// Of R rows. Limbs lie between -64 and 64: two products with unsigned codes fit int16.
template <int R>
struct QueryLimbs {
  alignas(64) int8_t limbs[2][R][kMostHeadDim];
  float scales[R];
  int32_t offsets[R];  // what a score has too much, since keys are stored plus 128
};

// Limbs lie between 0 and 127.
template <int R>
struct WeightLimbs {
  alignas(64) uint8_t limbs[2][R][kSpanTokens];
  float scales[R];
};

constexpr float kMostQuery = 8191.0f;
constexpr float kMostWeight = 16383.0f;
constexpr int kKeyOffset = 128;

inline float inverse_scale(float most, float limit) {
  return limit / most < __FLT_MAX__ ? limit / most : __FLT_MAX__;
}

inline void store_limbs(Floats first, Floats second, void* firsts, void* seconds) {
  _mm_store_si128(static_cast<__m128i*>(firsts), to_s8(first));
  _mm_store_si128(static_cast<__m128i*>(seconds), to_s8(second));
}

template <int R>
void split_queries(const Span& s, int first, QueryLimbs<R>& q) {
  const int dim = s.call->layout.padded_dim;
  for (int r = 0; r < R; ++r) {
    const float* row = s.queries + (first + r) * kQueryStride;
    Floats peak = zero();
    for (int d = 0; d < dim; d += 16) peak = max_bits(peak, magnitude(load(row + d)));
    const float most = max_bits_lanes(peak);
    const Floats inverse = broadcast(inverse_scale(most, kMostQuery));
    Floats sums = zero();  // exact: at most 256 whole numbers of 14 bits
    for (int d = 0; d < dim; d += 16) {
      const Floats whole = round_even(mul(load(row + d), inverse));
      const Floats high = round_even(mul(whole, broadcast(1.0f / 128)));
      store_limbs(high, fmadd(high, broadcast(-128.0f), whole), &q.limbs[0][r][d], &q.limbs[1][r][d]);
      sums = add(sums, whole);
    }
    q.scales[r] = most / kMostQuery;
    q.offsets[r] = most < __FLT_MAX__ ? static_cast<int32_t>(sum_lanes(sums)) * kKeyOffset : 0;
  }
}

template <int R>
void score_bytes(Span& s, int first, const QueryLimbs<R>& q) {
  constexpr int U = vectors_beside(R);
  const KvLayout& kv = s.call->layout;
  for (int unit = s.first_unit; unit <= s.last_unit; unit += U) {
    const uint8_t* keys[U];
    const uint8_t* ahead[U];
    for (int u = 0; u < U; ++u) {
      keys[u] = s.units[least(unit + u, s.last_unit)];
      ahead[u] = s.key_ahead[unit + U + u];
      const uint8_t* scales = s.units[least(unit + U + u, s.last_unit)];
      prefetch(scales + kv.key_scales);
      prefetch(scales + kv.value_scales);
    }
    ByteSums sums[R][U];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[r][u] = no_sums();
#pragma GCC unroll 2
    for (int limb = 0; limb < 2; ++limb) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) sums[r][u] = times_128(sums[r][u]);
      for (int d = 0; d < kv.head_dim; d += 4) {
        Bytes codes[U];
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) {
          codes[u] = load_bytes(keys[u] + d * kUnitTokens);
          if (limb == 0) prefetch(ahead[u] + d * kUnitTokens);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Bytes x = repeat_quad(reinterpret_cast<const uint8_t*>(&q.limbs[limb][r][d]));
#pragma GCC unroll 4
          for (int u = 0; u < U; ++u) add_dots(sums[r][u], codes[u], x);
        }
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      if (unit + u > s.last_unit) break;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats score = mul(to_floats(minus(sums[r][u], q.offsets[r])), broadcast(q.scales[r]));
        store(s.scores + (first + r) * kScoreStride + (unit + u) * kUnitTokens, score);
      }
    }
  }
}

// Limbs of a row's weights, of which those of tokens that it doesn't see are zero.
template <int R>
void split_weights(Span& s, int first, WeightLimbs<R>& w) {
  for (int r = 0; r < R; ++r) {
    const int begin = s.begin[first + r];
    const int end = s.end[first + r];
    float* weights = s.scores + (first + r) * kScoreStride;
    Floats peak = zero();
    for (int t = begin / kUnitTokens * kUnitTokens; t < end; t += kUnitTokens) {
      const Floats seen = replace_hidden(load(weights + t), begin, end, t, zero());
      store(weights + t, seen);
      peak = max_bits(peak, seen);
    }
    const float most = max_bits_lanes(peak);
    const Floats inverse = broadcast(inverse_scale(most, kMostWeight));
    for (int t = s.first_unit * kUnitTokens; t <= s.last_unit * kUnitTokens; t += kUnitTokens) {
      const bool seen = t + kUnitTokens > begin && t < end;
      const Floats whole = seen ? round_even(mul(load(weights + t), inverse)) : zero();
      // Rounded down: whole numbers plus a half are never between two.
      const Floats high = round_even(mul(sub(whole, broadcast(63.5f)), broadcast(1.0f / 128)));
      store_limbs(high, fmadd(high, broadcast(-128.0f), whole), &w.limbs[0][r][t], &w.limbs[1][r][t]);
    }
    w.scales[r] = most / kMostWeight;
  }
}

// weighted[d .. d + 16 C) of R rows = the span's weights times values.
template <int R, int C>
void weigh_bytes(const Span& s, int first, const WeightLimbs<R>& w, int d, AttendState* states) {
  const int dim = s.call->layout.padded_dim;
  const int offset = s.call->layout.values;
  ByteSums sums[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = no_sums();
#pragma GCC unroll 2
  for (int limb = 0; limb < 2; ++limb) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sums[r][c] = times_128(sums[r][c]);
    for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
      const uint8_t* values = s.units[unit] + offset + 4 * d;
      const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
      if (limb == 0) prefetch(ahead + kUnitTokens * dim - 4 * d);
      for (int t = 0; t < kUnitTokens; t += 4) {
        Bytes codes[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          codes[c] = load_bytes(values + t * dim + 64 * c);
          if (limb == 0) prefetch(ahead + t * dim + 64 * c);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Bytes x = repeat_quad(&w.limbs[limb][r][unit * kUnitTokens + t]);
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) add_dots(sums[r][c], x, codes[c]);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      store(states[first + r].weighted + d + 16 * c, mul(to_floats(sums[r][c]), broadcast(w.scales[r])));
}

template <int R>
void weigh_all_bytes(const Span& s, int first, const WeightLimbs<R>& w, AttendState* states) {
  constexpr int C = vectors_beside(R);
  const int dim = s.call->layout.padded_dim;
  int d = 0;
  for (; d + 16 * C <= dim; d += 16 * C) weigh_bytes<R, C>(s, first, w, d, states);
  for (; C > 1 && d < dim; d += 16) weigh_bytes<R, 1>(s, first, w, d, states);
}

template <int R>
void attend_byte_block(Span& s, int first, AttendState* states) {
  QueryLimbs<R> queries;
  split_queries(s, first, queries);
  score_bytes(s, first, queries);
  for (int r = first; r < first + R; ++r)
    if (s.begin[r] < s.end[r]) softmax_row<Int8Kv>(s, r, states[r]);
  WeightLimbs<R> weights;
  split_weights(s, first, weights);
  weigh_all_bytes(s, first, weights, states);
}
