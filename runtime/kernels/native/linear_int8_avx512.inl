// Integer weights times int8 activations with AVX-512 VNNI: 32 rows by 1, 2, 4 or 8 tokens a pass.
//
// Weight codes are the unsigned operand of vpdpbusd and activations the signed one, so a zero point
// costs nothing but the accumulator's first value. High nibbles are used where they stand, times 16;
// their rows' scales are divided by 16 instead, which is exact.

// gcc 12 copies a register around every _mm512_dpbusd_epi32 of an unrolled array; this does not.
inline void dot4(__m512i& sums, __m512i codes, __m512i values) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(values));
}

constexpr int kGroupQuads = kActivationGroup / 4;
constexpr int kPrefetchBytes = 9216;

inline bool is_int4(WeightKind kind) { return kind == WeightKind::int4; }

// Bytes of one activation group's codes, and of one weight group with its scales and zero points.
constexpr int code_bytes(WeightKind kind) {
  return kActivationGroup * kTileRows / (kind == WeightKind::int4 ? 2 : 1);
}
constexpr int scale_bytes(WeightKind kind) { return kind == WeightKind::int4 ? 64 : 128; }

struct RowScales {
  __m512 low, high;  // rows 0..15 and 16..31
};

template <WeightKind kKind>
inline RowScales load_row_scales(const uint8_t* line) {
  if constexpr (kKind == WeightKind::int4) {
    const __m512i halves = _mm512_load_si512(line);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
  } else {
    return {_mm512_load_ps(reinterpret_cast<const float*>(line)),
            _mm512_load_ps(reinterpret_cast<const float*>(line) + 16)};
  }
}

// -zero point * (sum of the group's values), what a dot product of raw codes has too much; times 16 for
// high nibbles. The first values are read back from memory: broadcasting loads cost no arithmetic port.
template <WeightKind kKind, bool kZeroPoints, int kWidth>
inline void start_sums(const uint8_t* zero_line, const int32_t* value_sums, __m512i* low, __m512i* high) {
  constexpr int kShift = kKind == WeightKind::int4 ? 4 : 0;
  if constexpr (kZeroPoints) {
    const __m512i points = _mm512_load_si512(zero_line);
#pragma GCC unroll 8
    for (int t = 0; t < kWidth; ++t) {
      const __m512i first = _mm512_set1_epi32(-value_sums[t] & 0xffff);
      low[t] = _mm512_dpwssd_epi32(_mm512_setzero_si512(), points, first);
      high[t] = _mm512_dpwssd_epi32(_mm512_setzero_si512(), points, _mm512_slli_epi32(first, 16));
      high[t] = _mm512_slli_epi32(high[t], kShift);
    }
  } else {
    constexpr int kPoint = kKind == WeightKind::int4 ? 8 : 128;
    alignas(32) int32_t starts[2][kWidth];
    for (int t = 0; t < kWidth; ++t) starts[0][t] = value_sums[t] * -kPoint;
    for (int t = 0; t < kWidth; ++t) starts[1][t] = value_sums[t] * -(kPoint << kShift);
    asm("" : "+m"(starts));
#pragma GCC unroll 8
    for (int t = 0; t < kWidth; ++t) {
      low[t] = _mm512_set1_epi32(starts[0][t]);
      high[t] = _mm512_set1_epi32(starts[1][t]);
    }
  }
}

// Two lines of codes as unsigned bytes: four columns of rows 0..15, and of rows 16..31.
template <WeightKind kKind>
inline void load_codes(const uint8_t* codes, int quad, __m512i& low, __m512i& high) {
  if constexpr (kKind == WeightKind::int4) {
    const __m512i line = _mm512_load_si512(codes + 64 * quad);
    const __m512i mask = _mm512_set1_epi8(0x0f);
    low = _mm512_and_si512(line, mask);
    high = _mm512_andnot_si512(mask, line);
  } else {
    low = _mm512_load_si512(codes + 128 * quad);
    high = _mm512_load_si512(codes + 128 * quad + 64);
  }
}

template <WeightKind kKind>
inline void prefetch_quad(const uint8_t* codes, int quad) {
  constexpr int kLine = kKind == WeightKind::int4 ? 64 : 128;
  const char* ahead = reinterpret_cast<const char*>(codes) + kLine * quad + kPrefetchBytes;
  _mm_prefetch(ahead, _MM_HINT_T0);
  if constexpr (kKind == WeightKind::int8) _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

// One activation group into the accumulators out[token][32], which live in the first level cache: with
// 8 tokens the 16 integer sums leave no registers for them.
template <WeightKind kKind, bool kZeroPoints, int kWidth, bool kPrefetch>
inline void multiply_group(const uint8_t* codes, const uint8_t* zero_line, const RowScales& scales,
                           const int32_t* values, const float* value_scales, const int32_t* value_sums,
                           float* out) {
  __m512i low[kWidth], high[kWidth];
  start_sums<kKind, kZeroPoints, kWidth>(zero_line, value_sums, low, high);
#pragma GCC unroll 8
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    __m512i low_codes, high_codes;
    load_codes<kKind>(codes, quad, low_codes, high_codes);
    if constexpr (kPrefetch) prefetch_quad<kKind>(codes, quad);
#pragma GCC unroll 8
    for (int t = 0; t < kWidth; ++t) {
      const __m512i four = _mm512_set1_epi32(values[quad * kWidth + t]);
      dot4(low[t], low_codes, four);
      dot4(high[t], high_codes, four);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kWidth; ++t) {
    float* row = out + t * kTileRows;
    const __m512 scale = _mm512_set1_ps(value_scales[t]);
    const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(low[t]), scale);
    const __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(high[t]), scale);
    _mm512_store_ps(row, _mm512_fmadd_ps(a, scales.low, _mm512_load_ps(row)));
    _mm512_store_ps(row + 16, _mm512_fmadd_ps(b, scales.high, _mm512_load_ps(row + 16)));
  }
}

template <WeightKind kKind, bool kZeroPoints, int kWidth, bool kPrefetch>
void multiply_panel(const Weight& weight, const uint8_t* tile, const int32_t* values, const float* scales,
                    const int32_t* sums, float* out) {
  alignas(64) float accumulators[kWidth * kTileRows] = {};
  const int inner = weight.group / kActivationGroup;
  for (int group = 0; group < weight.columns / weight.group; ++group) {
    const uint8_t* scale_line = tile + inner * code_bytes(kKind);
    const uint8_t* zero_line = scale_line + scale_bytes(kKind);
    RowScales row_scales = load_row_scales<kKind>(scale_line);
    if constexpr (kKind == WeightKind::int4) {
      row_scales.high = _mm512_mul_ps(row_scales.high, _mm512_set1_ps(0.0625f));
    }
    if constexpr (kPrefetch) {
      _mm_prefetch(reinterpret_cast<const char*>(scale_line) + kPrefetchBytes, _MM_HINT_T0);
    }
    for (int i = 0; i < inner; ++i) {
      multiply_group<kKind, kZeroPoints, kWidth, kPrefetch>(tile + i * code_bytes(kKind), zero_line, row_scales,
                                                            values, scales, sums, accumulators);
      values += kGroupQuads * kWidth;
      scales += kWidth;
      sums += kWidth;
    }
    tile = zero_line + (kZeroPoints ? 64 : 0);
  }
  for (int i = 0; i < kWidth * kTileRows; i += 16) _mm512_store_ps(out + i, _mm512_load_ps(accumulators + i));
}

using MultiplyPanel = void (*)(const Weight&, const uint8_t*, const int32_t*, const float*, const int32_t*, float*);

template <WeightKind kKind, bool kZeroPoints, bool kPrefetch>
MultiplyPanel choose_width(int width) {
  switch (width) {
    case 1: return multiply_panel<kKind, kZeroPoints, 1, kPrefetch>;
    case 2: return multiply_panel<kKind, kZeroPoints, 2, kPrefetch>;
    case 4: return multiply_panel<kKind, kZeroPoints, 4, kPrefetch>;
    default: return multiply_panel<kKind, kZeroPoints, 8, kPrefetch>;
  }
}

template <bool kPrefetch>
MultiplyPanel choose_panel(const Weight& weight, int width) {
  if (is_int4(weight.kind)) {
    return weight.zero_points ? choose_width<WeightKind::int4, true, kPrefetch>(width)
                              : choose_width<WeightKind::int4, false, kPrefetch>(width);
  }
  return weight.zero_points ? choose_width<WeightKind::int8, true, kPrefetch>(width)
                            : choose_width<WeightKind::int8, false, kPrefetch>(width);
}

void linear_int8(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  for (int panel = first; panel < first + count; ++panel) {
    const int width = panel == x.panels - 1 ? x.last : x.panel;
    const int64_t start = static_cast<int64_t>(panel) * x.panel * x.columns;
    const MultiplyPanel multiply =
        panel == first ? choose_panel<true>(weight, width) : choose_panel<false>(weight, width);
    multiply(weight, data, reinterpret_cast<const int32_t*>(static_cast<const int8_t*>(x.values) + start),
             x.scales + start / kActivationGroup, x.sums + start / kActivationGroup, out);
    out += width * kTileRows;
  }
}

void set_linear_int8_kernels(KernelTable& table) { table.linear_int8 = linear_int8; }
