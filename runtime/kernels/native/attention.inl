// Attention over one span of the cache, sixteen lanes at a time.
//
// Included inside the anonymous namespace of an instruction set's unit, after vectors.inl. Rows are
// taken in blocks that fill the registers. Each row's numbers are computed by the same operations in
// the same order in a block of any size: scores by dimension, softmax by unit, weighted values by
// token, over exactly the tokens that the row sees.

#include "byte_dots.inl"
#include "kv_append.inl"
#include "kv_load.inl"

constexpr int kSpanUnits = kSpanTokens / kUnitTokens;
constexpr int kAheadUnits = 4;  // how far memory is asked for before it is needed
constexpr int kListedUnits = kSpanUnits + 2 * kAheadUnits;
// Sixteen floats more than needed: at a power of two all rows would fall into the same cache sets.
constexpr int kScoreStride = kSpanTokens + 16;
constexpr int kQueryStride = kMostHeadDim + 16;

#if defined(__AVX512F__)
constexpr int row_block(int rows) {
  return rows == 16 ? 8 : rows >= 12 ? 12 : rows >= 8 ? (rows == 8 || rows == 11 ? 8 : 6)
                                          : rows == 7 ? 4 : rows == 5 ? 3 : rows;
}
// Vectors beside each other in a block of `rows`: together with the rows they hide the latency of fma.
constexpr int vectors_beside(int rows) { return rows <= 4 ? 4 : 2; }
#else
constexpr int row_block(int rows) {
  return rows == 7 || rows == 8 ? 4 : rows == 5 ? 3 : rows >= 6 ? 6 : rows;
}
constexpr int vectors_beside(int rows) { return rows <= 2 ? 2 : 1; }
#endif

struct Span {
  const AttendRows* call;
  int first_unit;  // units of the span that some row sees
  int last_unit;   // -1 if there are none
  const uint8_t* units[kSpanUnits];
  // What to prefetch instead of keys and values of unit u. Behind the last unit's keys come the first
  // unit's values, and behind the last unit's values the keys of the next span.
  const uint8_t* key_ahead[kListedUnits];
  const uint8_t* value_ahead[kListedUnits];
  int begin[kMostAttendRows];  // tokens of the span that the row sees: begin .. end - 1
  int end[kMostAttendRows];
  alignas(64) float queries[kMostAttendRows * kQueryStride];
  alignas(64) float scores[kMostAttendRows * kScoreStride];  // then weights
};

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// ---------------------------------------------------------------- scores

// Products of queries and keys of R rows, `first` and following, with every unit that is needed.
template <class Kv, int R>
void score_rows(Span& s, int first) {
  constexpr int U = vectors_beside(R);
  const int head_dim = s.call->layout.head_dim;
  const float* q = s.queries + first * kQueryStride;
  float* scores = s.scores + first * kScoreStride;
  alignas(64) uint16_t scratch[U][Kv::kScratch];
  for (int unit = s.first_unit; unit <= s.last_unit; unit += U) {
    const uint8_t* keys[U];
    const uint8_t* ahead[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      keys[u] = Kv::open_keys(s.units[least(unit + u, s.last_unit)], s.call->layout.padded_dim, scratch[u]);
      ahead[u] = s.key_ahead[unit + U + u];
    }
    Floats sums[R][U];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[r][u] = zero();
    for (int d = 0; d < head_dim; d += 2) {
      Floats even[U], odd[U];
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) {
        Kv::keys(keys[u], d, even[u], odd[u]);
        prefetch(ahead[u] + Kv::key_bytes(d));
        if (Kv::kKeyLines == 2) prefetch(ahead[u] + Kv::key_bytes(d + 1));
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats x = broadcast(q[r * kQueryStride + d]);
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) sums[r][u] = fmadd(x, even[u], sums[r][u]);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats x = broadcast(q[r * kQueryStride + d + 1]);
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) sums[r][u] = fmadd(x, odd[u], sums[r][u]);
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      if (unit + u > s.last_unit) break;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) store(scores + r * kScoreStride + (unit + u) * kUnitTokens, sums[r][u]);
    }
  }
}

// Numbers of a unit's tokens, from `token` on; those of tokens outside begin .. end - 1 become `hidden`,
// whatever they were.
inline Floats replace_hidden(Floats x, int begin, int end, int token, Floats hidden) {
  if (token + kUnitTokens > end) x = first_lanes(x, end - token, hidden);
  if (token < begin) x = first_lanes(hidden, begin - token, x);
  return x;
}

// Turns a row's products into weights e^(score - maximum), times the values' scales.
template <class Kv>
void softmax_row(Span& s, int row, AttendState& state) {
  const KvLayout& kv = s.call->layout;
  const int begin = s.begin[row];
  const int end = s.end[row];
  const Floats scale = broadcast(s.call->scale);
  const Floats cap = broadcast(s.call->softcap);
  float* scores = s.scores + row * kScoreStride;
  Floats maxima = broadcast(-__builtin_inff());
  for (int t = begin / kUnitTokens * kUnitTokens; t < end; t += kUnitTokens) {
    Floats score = mul(load(scores + t), scale);
    if (Kv::kScaled) score = mul(score, Kv::key_factor(kv, s.units[t / kUnitTokens]));
    if (s.call->softcap > 0.0f) score = mul(cap, hyperbolic_tangent(div(score, cap)));
    score = replace_hidden(score, begin, end, t, broadcast(-__builtin_inff()));
    maxima = max(maxima, score);
    store(scores + t, score);
  }
  state.maximum = max_lanes(maxima);
  const Floats maximum = broadcast(state.maximum);
  Floats sums = zero();
  for (int t = begin / kUnitTokens * kUnitTokens; t < end; t += kUnitTokens) {
    Floats weight = exponential(sub(load(scores + t), maximum));
    sums = add(sums, weight);
    if (Kv::kScaled) weight = mul(weight, Kv::value_factor(kv, s.units[t / kUnitTokens]));
    store(scores + t, weight);
  }
  state.sum = sum_lanes(sums);
}

// ---------------------------------------------------------------- weighted values

// weighted[d .. d + 16 C) of R rows += weights of tokens begin .. end - 1 times their values.
template <class Kv, int R, int C>
void add_values(const Span& s, int first, int begin, int end, int d, AttendState* states) {
  const int dim = s.call->layout.padded_dim;
  const int offset = s.call->layout.values;
  const float* weights = s.scores + first * kScoreStride;
  Floats sums[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = load(states[first + r].weighted + d + 16 * c);

  alignas(64) uint16_t scratch[Kv::kScratch];
  for (int unit = begin / kUnitTokens; unit * kUnitTokens < end; ++unit) {
    const float* unit_weights = weights + unit * kUnitTokens;
    const OpenValues values = Kv::template open_values<C>(s.units[unit] + offset, dim, d, scratch);
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits];
    // A token whose pair is not taken as a whole.
    const auto add_one = [&](int t) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        Floats a, b;
        Kv::values(values, t & ~1, c, a, b);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
          sums[r][c] = fmadd(broadcast(unit_weights[r * kScoreStride + t]), t % 2 ? b : a, sums[r][c]);
      }
    };
    int t = most(begin - unit * kUnitTokens, 0);
    const int last = least(end - unit * kUnitTokens, kUnitTokens);
    if (t % 2 != 0) add_one(t++);
    for (; t + 1 < last; t += 2) {
      Floats a[C], b[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        Kv::values(values, t, c, a[c], b[c]);
        prefetch(ahead + Kv::value_bytes(dim, t, d + 16 * c));
        if (!Kv::kTokenPairs) prefetch(ahead + Kv::value_bytes(dim, t + 1, d + 16 * c));
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats x = broadcast(unit_weights[r * kScoreStride + t]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[r][c] = fmadd(x, a[c], sums[r][c]);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats x = broadcast(unit_weights[r * kScoreStride + t + 1]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[r][c] = fmadd(x, b[c], sums[r][c]);
      }
    }
    if (t < last) add_one(t);
  }

#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(states[first + r].weighted + d + 16 * c, sums[r][c]);
}

template <class Kv, int R>
void add_all_values(const Span& s, int first, int begin, int end, AttendState* states) {
  if (begin >= end) return;
  constexpr int C = vectors_beside(R);
  const int dim = s.call->layout.padded_dim;
  int d = 0;
  for (; d + 16 * C <= dim; d += 16 * C) add_values<Kv, R, C>(s, first, begin, end, d, states);
  if (C == 4 && d + 32 <= dim) {
    add_values<Kv, R, 2>(s, first, begin, end, d, states);
    d += 32;
  }
  if (C > 1 && d < dim) add_values<Kv, R, 1>(s, first, begin, end, d, states);
}

// The block together where all of its rows see, each row alone before and after: a weight of zero
// would not do, since zero times an infinite value of a token that only others see is not zero.
template <class Kv, int R>
void weigh_rows(const Span& s, int first, AttendState* states) {
  int begin = s.begin[first];
  int end = s.end[first];
  for (int r = 1; r < R; ++r) {
    begin = most(begin, s.begin[first + r]);
    end = least(end, s.end[first + r]);
  }
  if (begin >= end) {
    for (int r = first; r < first + R; ++r) add_all_values<Kv, 1>(s, r, s.begin[r], s.end[r], states);
    return;
  }
  for (int r = first; r < first + R; ++r) add_all_values<Kv, 1>(s, r, s.begin[r], begin, states);
  add_all_values<Kv, R>(s, first, begin, end, states);
  for (int r = first; r < first + R; ++r) add_all_values<Kv, 1>(s, r, end, s.end[r], states);
}

// ---------------------------------------------------------------- the span

#include "attention_int8.inl"

template <class Kv, int R>
void attend_block(Span& s, int first, AttendState* states) {
  if constexpr (Kv::kWholeBytes) {
    attend_byte_block<R>(s, first, states);
  } else {
    score_rows<Kv, R>(s, first);
    for (int r = first; r < first + R; ++r)
      if (s.begin[r] < s.end[r]) softmax_row<Kv>(s, r, states[r]);
    weigh_rows<Kv, R>(s, first, states);
  }
}

template <class Kv>
void attend_rows(Span& s, AttendState* states) {
  for (int first = 0; first < s.call->rows;) {
    const int block = row_block(s.call->rows - first);
    switch (block) {
      case 1: attend_block<Kv, 1>(s, first, states); break;
      case 2: attend_block<Kv, 2>(s, first, states); break;
      case 3: attend_block<Kv, 3>(s, first, states); break;
      case 4: attend_block<Kv, 4>(s, first, states); break;
      case 6: attend_block<Kv, 6>(s, first, states); break;
#if defined(__AVX512F__)
      case 8: attend_block<Kv, 8>(s, first, states); break;
      case 12: attend_block<Kv, 12>(s, first, states); break;
#endif
    }
    first += block;
  }
}

// What the rows see of the span, and where it lies.
inline void open_span(const AttendRows& rows, int span, Span& s) {
  s.call = &rows;
  const int start = span * kSpanTokens;
  int begin = kSpanTokens;
  int end = 0;
  int last_position = 0;
  for (int r = 0; r < rows.rows; ++r) {
    const int position = rows.positions[r];
    s.begin[r] = rows.window > 0 ? most(position - rows.window + 1 - start, 0) : 0;
    s.end[r] = least(position + 1 - start, kSpanTokens);
    last_position = most(last_position, position);
    if (s.begin[r] >= s.end[r]) continue;
    begin = least(begin, s.begin[r]);
    end = most(end, s.end[r]);
  }
  s.first_unit = begin / kUnitTokens;
  s.last_unit = end > 0 ? (end - 1) / kUnitTokens : -1;
  if (s.last_unit < 0) return;
  const int values = rows.layout.values;
  const int last_of_all = last_position / kUnitTokens;
  for (int u = s.first_unit; u <= s.last_unit; ++u) {
    s.units[u] = s.key_ahead[u] = rows.units[span * kSpanUnits + u];
    s.value_ahead[u] = s.units[u] + values;
  }
  for (int u = s.last_unit + 1; u < kListedUnits; ++u) {
    s.key_ahead[u] = s.value_ahead[least(s.first_unit + u - s.last_unit - 1, s.last_unit)];
    s.value_ahead[u] = rows.units[least(span * kSpanUnits + u, last_of_all)];
  }
}

inline void copy_queries(const AttendRows& rows, Span& s) {
  const int head_dim = rows.layout.head_dim;
  for (int r = 0; r < rows.rows; ++r)
    for (int d = 0; d < head_dim; d += 16)  // zeros behind the last dimension, which may be an even one
      store(s.queries + r * kQueryStride + d, load_first(rows.queries[r] + d, head_dim - d));
}

// Nothing seen yet.
inline void clear_state(const KvLayout& layout, AttendState& state) {
  state.maximum = -__builtin_inff();
  state.sum = 0.0f;
  for (int d = 0; d < layout.padded_dim; d += 16) store(state.weighted + d, zero());
}

void attend_span(const AttendRows& rows, int span, AttendState* states) {
  for (int r = 0; r < rows.rows; ++r) clear_state(rows.layout, states[r]);
  Span s;
  open_span(rows, span, s);
  if (s.last_unit < 0) return;
  copy_queries(rows, s);
  switch (rows.layout.type) {
    case KvType::float32: return attend_rows<Float32Kv>(s, states);
    case KvType::bfloat16: return attend_rows<Bfloat16Kv>(s, states);
    case KvType::float16: return attend_rows<Float16Kv>(s, states);
    case KvType::fp8: return attend_rows<Fp8Kv>(s, states);
    case KvType::int8: return attend_rows<Int8Kv>(s, states);
    case KvType::int4: return attend_rows<Int4Kv>(s, states);
  }
}

// A sum of zero says that nothing was seen: whatever is seen adds 1 for the maximum.
void merge_state(AttendState& into, const AttendState& from, int padded_dim) {
  if (from.sum == 0.0f) return;
  if (into.sum == 0.0f) {
    into.maximum = from.maximum;
    into.sum = from.sum;
    for (int d = 0; d < padded_dim; d += 16) store(into.weighted + d, load(from.weighted + d));
    return;
  }
  const bool larger = from.maximum > into.maximum;
  const float below = larger ? into.maximum - from.maximum : from.maximum - into.maximum;
  const Floats one = broadcast(1.0f), less = exponential(broadcast(below));
  const Floats kept = larger ? less : one, added = larger ? one : less;
  if (larger) into.maximum = from.maximum;
  into.sum = first_lane(fmadd(broadcast(from.sum), added, mul(broadcast(into.sum), kept)));
  for (int d = 0; d < padded_dim; d += 16) {
    const Floats old = mul(load(into.weighted + d), kept);
    store(into.weighted + d, fmadd(load(from.weighted + d), added, old));
  }
}

void finish_state(const AttendState& state, int head_dim, float* out) {
  const Floats factor = broadcast(1.0f / state.sum);
  for (int d = 0; d < head_dim; d += 16)
    store_first(out + d, mul(load(state.weighted + d), factor), head_dim - d);
}

void set_attention_kernels(KernelTable& table) {
  table.append = append;
  table.attend_rows = 12;  // of the sizes that registers are blocked for, the one that fits most
  table.attend_span = attend_span;
  table.merge_state = merge_state;
  table.finish_state = finish_state;
}
