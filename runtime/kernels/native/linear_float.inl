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
  if (kKind == WeightKind::int4)
    return {sub(field<8 * kColumn, 4>(quad), zeros.lower), sub(field<8 * kColumn + 4, 4>(quad), zeros.upper)};
  return {sub(field<8 * kColumn, 8>(quad), zeros.lower), sub(field<8 * kColumn, 8>(quad + kLine), zeros.upper)};
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

// Two adjacent columns' activations of one token, for every row. `x` is that token's first value of
// the first of the columns, in a panel kWidth tokens wide.
template <int kWidth>
inline void broadcast_pair(const float* x, Floats& first, Floats& second) {
  first = broadcast(x[0]);
  second = broadcast(x[kWidth]);
}

template <int kWidth>
inline void broadcast_pair(const uint16_t* x, Floats& first, Floats& second) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  const uint32_t halves[2] = {bits << 16, bits & 0xffff0000u};
  float values[2];
  std::memcpy(values, halves, sizeof values);
  first = broadcast(values[0]);
  second = broadcast(values[1]);
}

// From one token's first value of a pair of columns to the next token's.
constexpr int token_step(const float*) { return 1; }
constexpr int token_step(const uint16_t*) { return 2; }

template <int kTokens>
struct Accumulators {
  Rows of[kTokens];

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

template <int kWidth, int kTokens, typename Value>
inline void add_block(const float* weights, const Value* x, float* sums) {
  Accumulators<kTokens> acc;
  acc.load_from(sums);
  for (int column = 0; column < kChunk; column += 2, weights += 2 * kTileRows, x += 2 * kWidth) {
    const Rows first = rows_at(weights), second = rows_at(weights + kTileRows);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      Floats a, b;
      broadcast_pair<kWidth>(x + t * token_step(x), a, b);
      acc.of[t].lower = fmadd(first.lower, a, acc.of[t].lower);
      acc.of[t].upper = fmadd(first.upper, a, acc.of[t].upper);
      acc.of[t].lower = fmadd(second.lower, b, acc.of[t].lower);
      acc.of[t].upper = fmadd(second.upper, b, acc.of[t].upper);
    }
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
template <int kWidth, typename Number, typename Value>
inline void add_chunk(const Number* weights, const Value* x, float* sums) {
  constexpr int kTokens = kWidth < kBlockTokens ? kWidth : kBlockTokens;
  for (int t = 0; t < kWidth; t += kTokens)
    add_block<kWidth, kTokens>(weights, x + t * token_step(x), sums + t * kTileRows);
}

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

template <int kWidth, WeightKind kKind, typename Value>
void multiply_integers(const Weight& weight, const uint8_t* data, const Value* x, float* out) {
  constexpr int kScaleBytes = kKind == WeightKind::int4 ? kLine : 2 * kLine;
  const Floats middle = broadcast(kKind == WeightKind::int4 ? 8.0f : 128.0f);
  typename TileFor<Value>::type tile;
  alignas(64) float sums[kWidth * kTileRows];
  for (int begin = 0; begin < weight.columns; begin += weight.group) {
    const uint8_t* scale_line = data + weight.group / 4 * quad_bytes<kKind>();
    const uint8_t* zero_line = scale_line + kScaleBytes;
    const Rows zeros = weight.zero_points ? Rows{signed_half<false>(zero_line), signed_half<true>(zero_line)}
                                          : Rows{middle, middle};
    clear(sums, kWidth * kTileRows);
    for (; data < scale_line; data += kChunk / 4 * quad_bytes<kKind>(), x += kChunk * kWidth) {
      decode_integers<kKind>(data, zeros, tile);
      add_chunk<kWidth>(tile.weights, x, sums);
    }
    const Rows scales = scales_at<kKind>(scale_line);
    for (int t = 0; t < kWidth * kTileRows; t += kTileRows) {
      store(out + t, fmadd(load(sums + t), scales.lower, load(out + t)));
      store(out + t + 16, fmadd(load(sums + t + 16), scales.upper, load(out + t + 16)));
    }
    data = zero_line + (weight.zero_points ? kLine : 0);
  }
}

template <int kWidth, typename Value>
void multiply_float32(const Weight& weight, const uint8_t* data, const Value* x, float* out) {
  const float* weights = reinterpret_cast<const float*>(data);
  for (int column = 0; column < weight.columns; column += kChunk)
    add_chunk<kWidth>(weights + column * kTileRows, x + column * kWidth, out);
}

template <int kWidth, typename Value>
void multiply_bfloat16(const Weight& weight, const uint8_t* data, const Value* x, float* out) {
  FloatTile tile;
  for (int column = 0; column < weight.columns; column += kChunk) {
    decode_bfloat16(data + column * kLine, tile);
    add_chunk<kWidth>(tile.weights, x + column * kWidth, out);
  }
}

#if defined(__AVX512BF16__)
template <int kWidth>
void multiply_bfloat16(const Weight& weight, const uint8_t* data, const uint16_t* x, float* out) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(data);
  for (int column = 0; column < weight.columns; column += kChunk)
    add_chunk<kWidth>(weights + column * kTileRows, x + column * kWidth, out);
}
#endif

template <int kWidth, typename Value>
void multiply_panel(const Weight& weight, const uint8_t* data, const Value* x, float* out) {
  clear(out, kWidth * kTileRows);
  switch (weight.kind) {
    case WeightKind::int4: return multiply_integers<kWidth, WeightKind::int4>(weight, data, x, out);
    case WeightKind::int8: return multiply_integers<kWidth, WeightKind::int8>(weight, data, x, out);
    case WeightKind::bfloat16: return multiply_bfloat16<kWidth>(weight, data, x, out);
    case WeightKind::float32: return multiply_float32<kWidth>(weight, data, x, out);
  }
}

template <typename Value>
void multiply_panels(const Weight& weight, const uint8_t* data, const Activations& x, int first, int count,
                     float* out) {
  for (int p = first; p < first + count; ++p) {
    const int width = p + 1 == x.panels ? x.last : x.panel;
    const Value* values = static_cast<const Value*>(x.values) + static_cast<int64_t>(p) * x.panel * x.columns;
    switch (width) {
      case 16: multiply_panel<16>(weight, data, values, out); break;
      case 8: multiply_panel<8>(weight, data, values, out); break;
      case 4: multiply_panel<4>(weight, data, values, out); break;
      case 2: multiply_panel<2>(weight, data, values, out); break;
      default: multiply_panel<1>(weight, data, values, out);
    }
    out += width * kTileRows;
  }
}

void linear(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  if (x.form == ActivationForm::bfloat16) multiply_panels<uint16_t>(weight, data, x, first, count, out);
  else multiply_panels<float>(weight, data, x, first, count, out);
}

}  // namespace linear_float

void set_linear_float_kernels(KernelTable& table) { table.linear_float = linear_float::linear; }
