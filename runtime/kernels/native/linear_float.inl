// Linear layers over bfloat16 and float32 activations, with weights of every kind.
//
// Included inside an anonymous namespace after vectors.inl. Weights are decoded 32 columns at a time
// into a small tile in the first cache, which then meets every token of a panel. Each (row, token)
// adds its products in column order, however many tokens stand beside it.
namespace linear_float {

constexpr int kChunk = kActivationGroup;
constexpr int kLine = 64;
#if defined(__AVX512F__)
constexpr int kBlockTokens = 8;
#else
constexpr int kBlockTokens = 2;
#endif

// ---------------------------------------------------------------- decoding 32 columns of 32 rows

#if defined(__AVX512F__)
// Of the 16 words of a line: byte or nibble at bit kShift, as floats.
template <int kShift, int kBits>
inline Floats field(const uint8_t* line) {
  const __m512i words = _mm512_srli_epi32(_mm512_loadu_si512(line), kShift);
  if (kBits == 4) {
    // The table look-up reads four bits of its index, and so masks and converts in one.
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_permutexvar_ps(words, numbers)};
  }
  return {_mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(255)))};
}

// The lower or upper int16 of each word of a line, as floats.
template <bool kUpper>
inline Floats signed_half(const uint8_t* line) {
  const __m512i words = _mm512_loadu_si512(line);
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(kUpper ? words : _mm512_slli_epi32(words, 16), 16))};
}
#else
template <int kShift, int kBits>
inline __m256 field_half(const uint8_t* p) {
  const __m256i words = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), kShift);
  return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32((1 << kBits) - 1)));
}

// Of the 16 words of a line: byte or nibble at bit kShift, as floats.
template <int kShift, int kBits>
inline Floats field(const uint8_t* line) {
  return {field_half<kShift, kBits>(line), field_half<kShift, kBits>(line + 32)};
}

template <bool kUpper>
inline __m256 signed_half_of(const uint8_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(kUpper ? words : _mm256_slli_epi32(words, 16), 16));
}

// The lower or upper int16 of each word of a line, as floats.
template <bool kUpper>
inline Floats signed_half(const uint8_t* line) {
  return {signed_half_of<kUpper>(line), signed_half_of<kUpper>(line + 32)};
}
#endif

// Rows 0..15 and 16..31 of a column or of a tile's scales or zero points.
struct Rows {
  Floats lower, upper;
};

inline Rows rows_at(const float* p) { return {load(p), load(p + 16)}; }

template <WeightKind kKind>
constexpr int quad_bytes() {
  return kKind == WeightKind::int4 ? kLine : 2 * kLine;
}

// Column kColumn of a quad of columns: codes minus zero points, exactly.
template <WeightKind kKind, int kColumn>
inline Rows decode_column(const uint8_t* quad, const Rows& zeros) {
  constexpr bool kInt4 = kKind == WeightKind::int4;
  const Floats lower = field<8 * kColumn, kInt4 ? 4 : 8>(quad);
  const Floats upper = kInt4 ? field<8 * kColumn + 4, 4>(quad) : field<8 * kColumn, 8>(quad + kLine);
  return {sub(lower, zeros.lower), sub(upper, zeros.upper)};
}

// Decoded columns as float [columns][32].
struct FloatTile {
  alignas(64) float weights[kChunk * kTileRows];

  void put_pair(int column, const Rows& first, const Rows& second) {
    float* p = weights + column * kTileRows;
    store(p, first.lower);
    store(p + 16, first.upper);
    store(p + 32, second.lower);
    store(p + 48, second.upper);
  }
};

template <WeightKind kKind, typename Tile>
inline void decode_integers(const uint8_t* codes, const Rows& zeros, Tile& tile) {
  for (int column = 0; column < kChunk; column += 4, codes += quad_bytes<kKind>()) {
    tile.put_pair(column, decode_column<kKind, 0>(codes, zeros), decode_column<kKind, 1>(codes, zeros));
    tile.put_pair(column + 2, decode_column<kKind, 2>(codes, zeros), decode_column<kKind, 3>(codes, zeros));
  }
}

inline void decode_bfloat16(const uint8_t* pairs, FloatTile& tile) {
  for (int column = 0; column < kChunk; column += 2, pairs += 2 * kLine) {
    Rows first, second;
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(pairs), first.lower, second.lower);
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(pairs + kLine), first.upper, second.upper);
    tile.put_pair(column, first, second);
  }
}

// ---------------------------------------------------------------- 32 columns times some tokens

template <int kTokens>
struct Accumulators {
  Rows of[kTokens];

  void add(int token, const Rows& weights, Floats x) {
    of[token].lower = fmadd(weights.lower, x, of[token].lower);
    of[token].upper = fmadd(weights.upper, x, of[token].upper);
  }
  void load_from(const float* sums) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) of[t] = rows_at(sums + t * kTileRows);
  }
  void store_to(float* sums) const {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      store(sums + t * kTileRows, of[t].lower);
      store(sums + t * kTileRows + 16, of[t].upper);
    }
  }
};

// `x` is [columns / 2][kWidth][2] if kPairs, else [columns][kWidth].
template <int kWidth, int kTokens, bool kPairs>
inline void add_block(const float* weights, const float* x, float* sums) {
  constexpr int kToken = kPairs ? 2 : 1, kColumn = kPairs ? 1 : kWidth;
  Accumulators<kTokens> acc;
  acc.load_from(sums);
  for (int column = 0; column < kChunk; column += 2, weights += 2 * kTileRows, x += 2 * kWidth) {
    const Rows first = rows_at(weights), second = rows_at(weights + kTileRows);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) acc.add(t, first, broadcast(x[t * kToken]));
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) acc.add(t, second, broadcast(x[t * kToken + kColumn]));
  }
  acc.store_to(sums);
}

#if defined(__AVX512BF16__)
// Decoded columns as pairs of bfloat16, [columns / 2][32][2], in the layout of bfloat16 weights.
// Codes minus zero points are whole and within -256 .. 256, so bfloat16 holds them exactly.
struct PairTile {
  alignas(64) uint16_t weights[kChunk * kTileRows];

  void put_pair(int column, const Rows& first, const Rows& second) {
    uint16_t* p = weights + column * kTileRows;
    _mm512_store_si512(p, pairs_of(first.lower, second.lower));
    _mm512_store_si512(p + 32, pairs_of(first.upper, second.upper));
  }

  static __m512i pairs_of(Floats first, Floats second) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first.v), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(second.v));
  }
};

inline Floats dot_pairs(Floats sum, __m512i weights, __m512i x) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)weights, (__m512bh)x)};
}

template <int kWidth, int kTokens>
inline void add_block(const uint16_t* weights, const uint16_t* x, float* sums) {
  Accumulators<kTokens> acc;
  acc.load_from(sums);
  for (int column = 0; column < kChunk; column += 2, weights += 2 * kTileRows, x += 2 * kWidth) {
    const __m512i lower = _mm512_loadu_si512(weights), upper = _mm512_loadu_si512(weights + 32);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      int32_t bits;
      std::memcpy(&bits, x + 2 * t, sizeof bits);
      const __m512i pair = _mm512_set1_epi32(bits);
      acc.of[t].lower = dot_pairs(acc.of[t].lower, lower, pair);
      acc.of[t].upper = dot_pairs(acc.of[t].upper, upper, pair);
    }
  }
  acc.store_to(sums);
}

template <typename Value>
struct TileFor {
  using type = FloatTile;
};
template <>
struct TileFor<uint16_t> {
  using type = PairTile;
};
#else
template <typename>
struct TileFor {
  using type = FloatTile;
};
#endif

// sums[token][32] += 32 columns times a panel; of the wider panels a block of tokens at a time.
template <int kWidth>
inline void add_chunk(const float* weights, const float* x, float* sums) {
  constexpr int kTokens = kWidth < kBlockTokens ? kWidth : kBlockTokens;
  for (int t = 0; t < kWidth; t += kTokens)
    add_block<kWidth, kTokens, false>(weights, x + t, sums + t * kTileRows);
}

template <int kWidth>
inline void add_chunk(const float* weights, const uint16_t* x, float* sums) {
  constexpr int kTokens = kWidth < kBlockTokens ? kWidth : kBlockTokens;
  alignas(64) float wide[kChunk * kWidth];
  for (int i = 0; i < kChunk * kWidth; i += 16) store(wide + i, load_bf16(x + i));
  for (int t = 0; t < kWidth; t += kTokens)
    add_block<kWidth, kTokens, true>(weights, wide + 2 * t, sums + t * kTileRows);
}

#if defined(__AVX512BF16__)
template <int kWidth>
inline void add_chunk(const uint16_t* weights, const uint16_t* x, float* sums) {
  constexpr int kTokens = kWidth < kBlockTokens ? kWidth : kBlockTokens;
  for (int t = 0; t < kWidth; t += kTokens)
    add_block<kWidth, kTokens>(weights, x + 2 * t, sums + t * kTileRows);
}
#endif

// ---------------------------------------------------------------- whole rows

inline void clear(float* p, int n) {
  for (int i = 0; i < n; ++i) p[i] = 0.0f;
}

template <WeightKind kKind>
inline Rows scales_at(const uint8_t* p) {
  if (kKind == WeightKind::int8) return rows_at(reinterpret_cast<const float*>(p));
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(p);
  return {load_f16(halves), load_f16(halves + 16)};
}

// Panels of one width, at most kMostPanels, that share one decoding of the weights.
template <typename Value>
struct PanelRun {
  const Value* values;
  int64_t stride;
  int panels;
};

constexpr int kMostPanels = 4;

// sums += 32 columns, from `column` on, times every panel of the run.
template <int kWidth, typename Number, typename Value>
inline void add_columns(const Number* weights, const PanelRun<Value>& x, int column, float* sums) {
  for (int p = 0; p < x.panels; ++p)
    add_chunk<kWidth>(weights, x.values + p * x.stride + column * kWidth, sums + p * kWidth * kTileRows);
}

template <int kWidth, WeightKind kKind, typename Value>
void multiply_integers(const Weight& weight, const uint8_t* data, const PanelRun<Value>& x, float* out) {
  constexpr int kScaleBytes = kKind == WeightKind::int4 ? kLine : 2 * kLine;
  const Floats middle = broadcast(kKind == WeightKind::int4 ? 8.0f : 128.0f);
  const int numbers = x.panels * kWidth * kTileRows;
  typename TileFor<Value>::type tile;
  alignas(64) float sums[kMostPanels * kWidth * kTileRows];
  for (int column = 0; column < weight.columns;) {
    const uint8_t* scale_line = data + weight.group / 4 * quad_bytes<kKind>();
    const uint8_t* zero_line = scale_line + kScaleBytes;
    const Rows zeros = weight.zero_points ? Rows{signed_half<false>(zero_line), signed_half<true>(zero_line)}
                                          : Rows{middle, middle};
    clear(sums, numbers);
    for (; data < scale_line; data += kChunk / 4 * quad_bytes<kKind>(), column += kChunk) {
      decode_integers<kKind>(data, zeros, tile);
      add_columns<kWidth>(tile.weights, x, column, sums);
    }
    const Rows scales = scales_at<kKind>(scale_line);
    for (int i = 0; i < numbers; i += kTileRows) {
      store(out + i, fmadd(load(sums + i), scales.lower, load(out + i)));
      store(out + i + 16, fmadd(load(sums + i + 16), scales.upper, load(out + i + 16)));
    }
    data = zero_line + (weight.zero_points ? kLine : 0);
  }
}

template <int kWidth, typename Value>
void multiply_float32(const Weight& weight, const uint8_t* data, const PanelRun<Value>& x, float* out) {
  const float* weights = reinterpret_cast<const float*>(data);
  for (int column = 0; column < weight.columns; column += kChunk)
    add_columns<kWidth>(weights + column * kTileRows, x, column, out);
}

template <int kWidth, typename Value>
void multiply_bfloat16(const Weight& weight, const uint8_t* data, const PanelRun<Value>& x, float* out) {
  FloatTile tile;
  for (int column = 0; column < weight.columns; column += kChunk) {
    decode_bfloat16(data + column * kLine, tile);
    add_columns<kWidth>(tile.weights, x, column, out);
  }
}

#if defined(__AVX512BF16__)
template <int kWidth>
void multiply_bfloat16(const Weight& weight, const uint8_t* data, const PanelRun<uint16_t>& x, float* out) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(data);
  for (int column = 0; column < weight.columns; column += kChunk)
    add_columns<kWidth>(weights + column * kTileRows, x, column, out);
}
#endif

template <int kWidth, typename Value>
void multiply_run(const Weight& weight, const uint8_t* data, const PanelRun<Value>& x, float* out) {
  clear(out, x.panels * kWidth * kTileRows);
  switch (weight.kind) {
    case WeightKind::int4: return multiply_integers<kWidth, WeightKind::int4>(weight, data, x, out);
    case WeightKind::int8: return multiply_integers<kWidth, WeightKind::int8>(weight, data, x, out);
    case WeightKind::bfloat16: return multiply_bfloat16<kWidth>(weight, data, x, out);
    case WeightKind::float32: return multiply_float32<kWidth>(weight, data, x, out);
  }
}

// How many of the `most` panels from `first` on make one run.
inline int run_length(const Activations& x, int first, int most) {
  if (first + 1 == x.panels) return 1;
  const int full = x.last == x.panel ? x.panels - first : x.panels - 1 - first;
  const int limit = most < kMostPanels ? most : kMostPanels;
  return full < limit ? full : limit;
}

template <typename Value>
void multiply_panels(const Weight& weight, const uint8_t* data, const Activations& x, int first, int count,
                     float* out) {
  const int64_t stride = static_cast<int64_t>(x.panel) * x.columns;
  while (count > 0) {
    const int width = first + 1 == x.panels ? x.last : x.panel;
    const int panels = run_length(x, first, count);
    const PanelRun<Value> run{static_cast<const Value*>(x.values) + first * stride, stride, panels};
    switch (width) {
      case 16: multiply_run<16>(weight, data, run, out); break;
      case 8: multiply_run<8>(weight, data, run, out); break;
      case 4: multiply_run<4>(weight, data, run, out); break;
      case 2: multiply_run<2>(weight, data, run, out); break;
      default: multiply_run<1>(weight, data, run, out);
    }
    out += panels * width * kTileRows;
    first += panels;
    count -= panels;
  }
}

void linear(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  if (x.form == ActivationForm::bfloat16) multiply_panels<uint16_t>(weight, data, x, first, count, out);
  else multiply_panels<float>(weight, data, x, first, count, out);
}

}  // namespace linear_float

void set_linear_float_kernels(KernelTable& table) { table.linear_float = linear_float::linear; }
