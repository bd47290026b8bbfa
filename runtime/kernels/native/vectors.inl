// Sixteen floats at a time, in the registers of the including unit's instruction set.
//
// Included inside an anonymous namespace of a translation unit with AVX-512 or AVX2 + FMA + F16C.
// Every operation is one IEEE operation a lane, so the two widths agree to the bit.

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined registers inside its own AVX-512 intrinsics for a mistake of the caller.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__AVX512F__)
struct Floats {
  __m512 v;
};
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline Floats fmadd(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats round_even(Floats a) { return {_mm512_roundscale_ps(a.v, 8)}; }
inline Floats load_bf16(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline Floats load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// 16 pairs of bfloat16: the first of each pair, and the second.
inline void load_bf16_pairs(const uint16_t* p, Floats& first, Floats& second) {
  const __m512i pairs = _mm512_loadu_si512(p);
  first = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
  second = {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// The lanes of `a` whose index is below `n`; the others are `other`.
inline Floats first_lanes(Floats a, int n, Floats other) {
  const __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
  return {_mm512_mask_mov_ps(other.v, mask, a.v)};
}
// a * 2^n for whole n in -126 .. 127.
inline Floats times_power_of_two(Floats a, Floats n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Lanes 0 .. n - 1 of p (n at most 16); the others are zero and not read.
inline __mmask16 lanes_below(int n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << n) - 1); }
inline Floats load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_below(n), p)}; }
inline void store_first(float* p, Floats a, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), a.v); }
// Bit i is set where lane i of a equals lane i of b.
inline unsigned equal_lanes(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline Floats select_below(Floats a, Floats limit, Floats then, Floats otherwise) {
  return {_mm512_mask_mov_ps(otherwise.v, _mm512_cmp_ps_mask(a.v, limit.v, _CMP_LT_OQ), then.v)};
}
inline Floats magnitude(Floats a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))};
}
// The largest of numbers that are not negative, as bits: NaN counts as the largest.
inline Floats max_bits(Floats a, Floats b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
inline __m256i fold_max_bits(Floats a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  return _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
}
// Rounded to whole numbers (to even), saturated to 8 bits.
inline __m128i to_s8(Floats a) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)); }
inline __m256i to_s8(Floats a, Floats b) {
  const __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
  const __m256i upper = _mm512_extracti64x4_epi64(words, 1);
  const __m256i bytes = _mm256_packs_epi16(_mm512_castsi512_si256(words), upper);
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}
inline __m256i to_f16(Floats a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
// To nearest even; NaN stays NaN.
inline __m256i to_bf16(Floats a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
}
// Bits of a shifted right by 20, rounded to even: a float with three bits of mantissa.
inline __m512i round_to_three_bits(__m512i bits) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), 20);
}
// FP8 E4M3, to nearest even, saturated at 448; NaN gives the code of NaN.
inline __m128i to_fp8(Floats a) {
  const __m512i all = _mm512_castps_si512(a.v);
  const Floats limited = min(magnitude(a), broadcast(448.0f));
  const __m512i rounded = round_to_three_bits(_mm512_castps_si512(limited.v));
  const __m512i normal = _mm512_sub_epi32(rounded, _mm512_set1_epi32(120 << 3));
  const __m512i small = _mm512_cvtps_epi32(_mm512_mul_ps(limited.v, _mm512_set1_ps(512.0f)));
  const __mmask16 is_small = _mm512_cmp_ps_mask(limited.v, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
  __m512i code = _mm512_mask_mov_epi32(normal, is_small, small);
  code = _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7f));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(code, _mm512_slli_epi32(_mm512_srli_epi32(all, 31), 7)));
}
// 32 FP8 E4M3 numbers divided by 256 as float16: their bits need only a shift. Exact, subnormals too; the
// code of NaN becomes 480.
inline void widen_fp8(const uint8_t* p, uint16_t* halves) {
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0xbf80));
  _mm512_storeu_si512(halves, _mm512_and_si512(_mm512_slli_epi16(wide, 7), kept));
}
// 16 signed bytes.
inline Floats load_s8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// The low and the high nibbles of 16 bytes, less 8.
inline void load_nibbles(const uint8_t* p, Floats& low, Floats& high) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512 eight = _mm512_set1_ps(8.0f);
  low = {_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15))), eight)};
  high = {_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4)), eight)};
}
#else
struct Floats {
  __m256 lo, hi;
};
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
inline Floats fmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Floats round_even(Floats a) { return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)}; }
inline __m256 widen_bf16(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Floats load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Floats load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// 16 pairs of bfloat16: the first of each pair, and the second.
inline void load_bf16_pairs(const uint16_t* p, Floats& first, Floats& second) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  second = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}
// The lanes of `a` whose index is below `n`; the others are `other`.
inline Floats first_lanes(Floats a, int n, Floats other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes));
  const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes));
  return {_mm256_blendv_ps(other.lo, a.lo, lo), _mm256_blendv_ps(other.hi, a.hi, hi)};
}
inline __m256 power_of_two_half(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
// a * 2^n for whole n in -126 .. 127.
inline Floats times_power_of_two(Floats a, Floats n) {
  return mul(a, {power_of_two_half(n.lo), power_of_two_half(n.hi)});
}
// Lanes 0 .. n - 1 of p (n at most 16); the others are zero and not read.
inline __m256i lanes_below(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n)), _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}
inline void store_first(float* p, Floats a, int n) {
  _mm256_maskstore_ps(p, lanes_below(n), a.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(n - 8), a.hi);
}
// Bit i is set where lane i of a equals lane i of b.
inline unsigned equal_lanes(Floats a, Floats b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
  return static_cast<unsigned>(lo | _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8);
}
inline Floats select_below(Floats a, Floats limit, Floats then, Floats otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, then.lo, _mm256_cmp_ps(a.lo, limit.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.hi, then.hi, _mm256_cmp_ps(a.hi, limit.hi, _CMP_LT_OQ))};
}
inline Floats magnitude(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline __m256i max_bits_half(__m256 a, __m256 b) {
  return _mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
}
// The largest of numbers that are not negative, as bits: NaN counts as the largest.
inline Floats max_bits(Floats a, Floats b) {
  return {_mm256_castsi256_ps(max_bits_half(a.lo, b.lo)), _mm256_castsi256_ps(max_bits_half(a.hi, b.hi))};
}
inline __m256i fold_max_bits(Floats a) { return max_bits_half(a.lo, a.hi); }
// Sixteen whole numbers as saturated 16 bits.
inline __m256i pack_words(__m256i lo, __m256i hi) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), _MM_SHUFFLE(3, 1, 2, 0));
}
// Rounded to whole numbers (to even), saturated to 8 bits.
inline __m128i to_s8(Floats a) {
  const __m256i words = pack_words(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline __m256i to_s8(Floats a, Floats b) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
}
inline __m256i to_f16(Floats a) {
  const __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT);
  const __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}
inline __m256i to_bf16_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
// To nearest even; NaN stays NaN.
inline __m256i to_bf16(Floats a) {
  const __m256i words = _mm256_packus_epi32(to_bf16_half(a.lo), to_bf16_half(a.hi));
  return _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
}
// Bits of a shifted right by 20, rounded to even: a float with three bits of mantissa.
inline __m256i round_to_three_bits(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))), 20);
}
inline __m256i to_fp8_half(__m256 a) {
  const __m256 limited = _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), _mm256_set1_ps(448.0f));
  const __m256i rounded = round_to_three_bits(_mm256_castps_si256(limited));
  const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32(120 << 3));
  const __m256i small = _mm256_cvtps_epi32(_mm256_mul_ps(limited, _mm256_set1_ps(512.0f)));
  const __m256 is_small = _mm256_cmp_ps(limited, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
  __m256i code = _mm256_blendv_epi8(normal, small, _mm256_castps_si256(is_small));
  const __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_castps_si256(is_nan));
  return _mm256_or_si256(code, _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(a), 31), 7));
}
// FP8 E4M3, to nearest even, saturated at 448; NaN gives the code of NaN.
inline __m128i to_fp8(Floats a) {
  const __m256i words = pack_words(to_fp8_half(a.lo), to_fp8_half(a.hi));
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline void widen_fp8_half(const uint8_t* p, uint16_t* halves) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i kept = _mm256_set1_epi16(static_cast<short>(0xbf80));
  const __m256i bits = _mm256_and_si256(_mm256_slli_epi16(wide, 7), kept);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves), bits);
}
// 32 FP8 E4M3 numbers divided by 256 as float16: their bits need only a shift. Exact, subnormals too; the
// code of NaN becomes 480.
inline void widen_fp8(const uint8_t* p, uint16_t* halves) {
  widen_fp8_half(p, halves);
  widen_fp8_half(p + 16, halves + 16);
}
// 16 signed bytes.
inline Floats load_s8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline __m256 nibbles_half(__m256i nibbles) {
  return _mm256_sub_ps(_mm256_cvtepi32_ps(nibbles), _mm256_set1_ps(8.0f));
}
// The low and the high nibbles of 16 bytes, less 8.
inline void load_nibbles(const uint8_t* p, Floats& low, Floats& high) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i a = _mm256_cvtepu8_epi32(bytes);
  const __m256i b = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
  const __m256i mask = _mm256_set1_epi32(15);
  low = {nibbles_half(_mm256_and_si256(a, mask)), nibbles_half(_mm256_and_si256(b, mask))};
  high = {nibbles_half(_mm256_srli_epi32(a, 4)), nibbles_half(_mm256_srli_epi32(b, 4))};
}
#endif

inline Floats zero() { return broadcast(0.0f); }

// The sixteen lanes added in one fixed tree.
inline float sum_lanes(Floats a) {
  float x[16];
  store(x, a);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}
inline float max_lanes(Floats a) {
  float x[16];
  store(x, a);
  float best = x[0];
  for (int i = 1; i < 16; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// The largest of sixteen numbers that are not negative; NaN counts as the largest.
inline float max_bits_lanes(Floats a) {
  const __m256i eight = fold_max_bits(a);
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}
inline float first_lane(Floats a) {
  float x[16];
  store(x, a);
  return x[0];
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// e^x within 2 units in the last place for x <= 88; exactly 0 below -87 (and for -inf), 1 at 0, NaN
// for NaN. Range reduction by ln 2 in two parts and a degree-6 polynomial (Cephes' expf).
inline Floats exponential(Floats x) {
  const Floats lowest = broadcast(-87.0f);
  // min and max give their second operand if one is NaN: x must come second.
  const Floats clamped = min(broadcast(88.0f), max(lowest, x));
  const Floats n = round_even(mul(clamped, broadcast(1.44269504088896341f)));
  Floats r = fmadd(n, broadcast(-0.693359375f), clamped);
  r = fmadd(n, broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = fmadd(p, r, broadcast(1.3981999507e-3f));
  p = fmadd(p, r, broadcast(8.3334519073e-3f));
  p = fmadd(p, r, broadcast(4.1665795894e-2f));
  p = fmadd(p, r, broadcast(1.6666665459e-1f));
  p = fmadd(p, r, broadcast(5.0000001201e-1f));
  p = fmadd(p, mul(r, r), add(r, broadcast(1.0f)));
  return select_below(x, lowest, zero(), times_power_of_two(p, n));
}

// tanh(x), with an error of at most 2^-23.
inline Floats hyperbolic_tangent(Floats x) {
  const Floats e = exponential(add(x, x));
  return sub(broadcast(1.0f), div(broadcast(2.0f), add(e, broadcast(1.0f))));
}
