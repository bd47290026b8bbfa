// Linear layers of int4 and int8 weights times int8 activations, on 256-bit registers: with
// AVX-VNNI's dot products where the including unit has them, else with multiplies of bytes.
//
// Included inside an anonymous namespace of a translation unit with AVX2 + FMA + F16C. A block is
// 8 rows (for int4 8 of the lower 16 and 8 of the upper 16) times some tokens of one panel, over one
// activation group: its int32 sums are exact, so that neither the block's shape nor the instruction
// can change a result.
namespace linear_int8 {

constexpr int kQuads = kActivationGroup / 4;
constexpr int kLine = 64;

// One activation group of a panel; `quads` is where its values begin.
struct PanelGroup {
  const int8_t* quads;
  const float* scales;
  const int32_t* sums;
};

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Four activations, for every row.
inline __m256i broadcast_quad(const int8_t* quad) {
  int32_t bits;
  std::memcpy(&bits, quad, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// What a token's sums begin with: -zero point * the sum of its activations. Without zero points
// `words` are those numbers themselves; with them each is two int16 of which one is minus the sum of
// the activations, to multiply the two zero points that a word of `zeros` holds.
template <bool kZeroPoints, int kShift>
struct Starts {
  const int32_t* words;
  __m256i zeros;

  __m256i of(int token) const {
    const __m256i word = _mm256_set1_epi32(words[token]);
    return kZeroPoints ? _mm256_slli_epi32(_mm256_madd_epi16(zeros, word), kShift) : word;
  }
};

// The words of `Starts` for rows of the tile's lower and upper half.
template <int kWidth>
struct StartWords {
  int32_t lower[kWidth];
  int32_t upper[kWidth];
};

template <int kWidth, bool kZeroPoints, int kMiddleBits, int kUpperShift>
inline void prepare_starts(const int32_t* sums, StartWords<kWidth>& words) {
  for (int t = 0; t < kWidth; ++t) {
    const uint32_t negative = 0u - static_cast<uint32_t>(sums[t]);
    const uint32_t lower = kZeroPoints ? negative & 0xffff : negative << kMiddleBits;
    words.lower[t] = static_cast<int32_t>(lower);
    words.upper[t] = static_cast<int32_t>(lower << (kZeroPoints ? 16 : kUpperShift));
  }
}

#if defined(__AVXVNNI__)
constexpr int kNibbleTokens = 4;
constexpr int kByteTokens = 8;
// High nibbles are multiplied in place, 16 times too large; the scale makes up for it, exactly.
constexpr int kHighShift = 4;

// Sums of 8 rows' low nibbles times activations, and of their high nibbles, each added to its start.
template <int kWidth, int kTokens, typename Low, typename High>
inline void sum_nibbles(const uint8_t* codes, const int8_t* quads, const Low& low_starts,
                        const High& high_starts, __m256i* low, __m256i* high) {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    low[t] = low_starts.of(t);
    high[t] = high_starts.of(t);
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQuads; ++q) {
    const __m256i pairs = load256(codes + q * kLine);
    const __m256i low_codes = _mm256_and_si256(pairs, mask);
    const __m256i high_codes = _mm256_andnot_si256(mask, pairs);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256i x = broadcast_quad(quads + 4 * (q * kWidth + t));
      low[t] = _mm256_dpbusd_avx_epi32(low[t], low_codes, x);
      high[t] = _mm256_dpbusd_avx_epi32(high[t], high_codes, x);
    }
  }
}

// Sums of 8 rows' bytes times activations, each added to its start.
template <int kWidth, int kTokens, typename Start>
inline void sum_bytes(const uint8_t* codes, const int8_t* quads, const Start& starts, __m256i* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) sums[t] = starts.of(t);
#pragma GCC unroll 8
  for (int q = 0; q < kQuads; ++q) {
    const __m256i bytes = load256(codes + q * 2 * kLine);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t)
      sums[t] = _mm256_dpbusd_avx_epi32(sums[t], bytes, broadcast_quad(quads + 4 * (q * kWidth + t)));
  }
}
#else
constexpr int kNibbleTokens = 4;
constexpr int kByteTokens = 4;
constexpr int kHighShift = 0;

// As int16, two sums a row: a nibble times int8 is at most 15 * 128, so that two products in each of
// the 8 quads of an activation group reach 30,720 and never saturate.
template <int kWidth, int kTokens, int kStride>
inline void sum_nibble_pairs(const uint8_t* codes, const int8_t* quads, __m256i* low, __m256i* high) {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) low[t] = high[t] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int q = 0; q < kQuads; ++q) {
    const __m256i pairs = load256(codes + q * kStride);
    const __m256i low_codes = _mm256_and_si256(pairs, mask);
    const __m256i high_codes = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m256i x = broadcast_quad(quads + 4 * (q * kWidth + t));
      low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(low_codes, x));
      high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(high_codes, x));
      // Keeps gcc 12 from regrouping the additions, for which it spills every product.
      asm("" : "+x"(low[t]), "+x"(high[t]));
    }
  }
}

// Sums of 8 rows' low nibbles times activations, and of their high nibbles, each added to its start.
template <int kWidth, int kTokens, typename Low, typename High>
inline void sum_nibbles(const uint8_t* codes, const int8_t* quads, const Low& low_starts,
                        const High& high_starts, __m256i* low, __m256i* high) {
  sum_nibble_pairs<kWidth, kTokens, kLine>(codes, quads, low, high);
  const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    low[t] = _mm256_add_epi32(_mm256_madd_epi16(low[t], one), low_starts.of(t));
    high[t] = _mm256_add_epi32(_mm256_madd_epi16(high[t], one), high_starts.of(t));
  }
}

// Sums of 8 rows' bytes times activations, each added to its start: multiplied whole, bytes would
// saturate; their nibbles don't.
template <int kWidth, int kTokens, typename Start>
inline void sum_bytes(const uint8_t* codes, const int8_t* quads, const Start& starts, __m256i* sums) {
  __m256i high[kTokens];
  sum_nibble_pairs<kWidth, kTokens, 2 * kLine>(codes, quads, sums, high);
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i sixteen = _mm256_set1_epi16(16);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    const __m256i low_sum = _mm256_madd_epi16(sums[t], one);
    const __m256i high_sum = _mm256_madd_epi16(high[t], sixteen);
    sums[t] = _mm256_add_epi32(_mm256_add_epi32(low_sum, high_sum), starts.of(t));
  }
}
#endif

// out[token][0..8) = fma(float(sum) * activation scale, weight scale, out).
template <int kTokens>
inline void flush(const __m256i* sums, __m256 weight_scales, const float* scales, float* out) {
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[t]), _mm256_broadcast_ss(scales + t));
    float* row = out + t * kTileRows;
    _mm256_storeu_ps(row, _mm256_fmadd_ps(scaled, weight_scales, _mm256_loadu_ps(row)));
  }
}

inline __m256 widen_scales(const uint8_t* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

template <int kWidth, bool kZeroPoints>
inline void add_int4_group(const uint8_t* codes, const uint8_t* scales, const uint8_t* zeros,
                           const PanelGroup& x, float* out) {
  constexpr int kTokens = kWidth < kNibbleTokens ? kWidth : kNibbleTokens;
  StartWords<kWidth> words;
  prepare_starts<kWidth, kZeroPoints, 3, kHighShift>(x.sums, words);
  for (int row = 0; row < 16; row += 8) {
    const __m256i zero = kZeroPoints ? load256(zeros + 4 * row) : _mm256_setzero_si256();
    const __m256 low_scales = widen_scales(scales + 2 * row);
    const __m256 part = _mm256_set1_ps(1.0f / (1 << kHighShift));
    const __m256 high_scales = _mm256_mul_ps(widen_scales(scales + 2 * row + 32), part);
    for (int t = 0; t < kWidth; t += kTokens) {
      const Starts<kZeroPoints, 0> low_starts{words.lower + t, zero};
      const Starts<kZeroPoints, kHighShift> high_starts{words.upper + t, zero};
      __m256i low[kTokens], high[kTokens];
      sum_nibbles<kWidth, kTokens>(codes + 4 * row, x.quads + 4 * t, low_starts, high_starts, low, high);
      float* block = out + t * kTileRows + row;
      flush<kTokens>(low, low_scales, x.scales + t, block);
      flush<kTokens>(high, high_scales, x.scales + t, block + 16);
    }
  }
}

// 16 rows: the tile's lower or upper half, with the words that belong to it.
template <int kWidth, bool kZeroPoints>
inline void add_int8_half(const uint8_t* codes, const uint8_t* scales, const uint8_t* zeros,
                          const int32_t* words, const PanelGroup& x, float* out) {
  constexpr int kTokens = kWidth < kByteTokens ? kWidth : kByteTokens;
  for (int row = 0; row < 16; row += 8) {
    const __m256i zero = kZeroPoints ? load256(zeros + 4 * row) : _mm256_setzero_si256();
    const __m256 row_scales = _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + row);
    for (int t = 0; t < kWidth; t += kTokens) {
      const Starts<kZeroPoints, 0> starts{words + t, zero};
      __m256i sums[kTokens];
      sum_bytes<kWidth, kTokens>(codes + 4 * row, x.quads + 4 * t, starts, sums);
      flush<kTokens>(sums, row_scales, x.scales + t, out + t * kTileRows + row);
    }
  }
}

template <int kWidth, bool kZeroPoints>
inline void add_int8_group(const uint8_t* codes, const uint8_t* scales, const uint8_t* zeros,
                           const PanelGroup& x, float* out) {
  StartWords<kWidth> words;
  prepare_starts<kWidth, kZeroPoints, 7, 0>(x.sums, words);
  add_int8_half<kWidth, kZeroPoints>(codes, scales, zeros, words.lower, x, out);
  add_int8_half<kWidth, kZeroPoints>(codes + kLine, scales + kLine, zeros, words.upper, x, out + 16);
}

template <int kWidth, bool kInt4, bool kZeroPoints>
void multiply_panel(const Weight& weight, const uint8_t* tile, PanelGroup x, float* out) {
  constexpr int kGroupCodes = kActivationGroup * (kInt4 ? 16 : 32);
  constexpr int kScaleBytes = kInt4 ? kLine : 2 * kLine;
  const int code_bytes = weight.group / kActivationGroup * kGroupCodes;
  for (int i = 0; i < kWidth * kTileRows; ++i) out[i] = 0.0f;
  for (int begin = 0; begin < weight.columns; begin += weight.group) {
    const uint8_t* scales = tile + code_bytes;
    const uint8_t* zeros = scales + kScaleBytes;
    for (const uint8_t* codes = tile; codes < scales; codes += kGroupCodes) {
      if (kInt4) add_int4_group<kWidth, kZeroPoints>(codes, scales, zeros, x, out);
      else add_int8_group<kWidth, kZeroPoints>(codes, scales, zeros, x, out);
      x.quads += kActivationGroup * kWidth;
      x.scales += kWidth;
      x.sums += kWidth;
    }
    tile = zeros + (kZeroPoints ? kLine : 0);
  }
}

template <int kWidth>
void multiply_panel(const Weight& weight, const uint8_t* tile, const PanelGroup& x, float* out) {
  const bool int4 = weight.kind == WeightKind::int4;
  if (int4 && weight.zero_points) return multiply_panel<kWidth, true, true>(weight, tile, x, out);
  if (int4) return multiply_panel<kWidth, true, false>(weight, tile, x, out);
  if (weight.zero_points) return multiply_panel<kWidth, false, true>(weight, tile, x, out);
  multiply_panel<kWidth, false, false>(weight, tile, x, out);
}

void linear(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  for (int p = first; p < first + count; ++p) {
    const int width = p + 1 == x.panels ? x.last : x.panel;
    const int64_t values = static_cast<int64_t>(p) * x.panel * x.columns;
    const int64_t groups = values / kActivationGroup;
    const PanelGroup group{static_cast<const int8_t*>(x.values) + values, x.scales + groups, x.sums + groups};
    if (width == 8) multiply_panel<8>(weight, data, group, out);
    else if (width == 4) multiply_panel<4>(weight, data, group, out);
    else if (width == 2) multiply_panel<2>(weight, data, group, out);
    else multiply_panel<1>(weight, data, group, out);
    out += width * kTileRows;
  }
}

}  // namespace linear_int8

void set_linear_int8_kernels(KernelTable& table) { table.linear_int8 = linear_int8::linear; }
