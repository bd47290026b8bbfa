// Sixteen floats at a time, in the registers of the including unit's instruction set.
//
// Included inside an anonymous namespace of a translation unit with AVX-512 or AVX2 + FMA + F16C.
// Every operation is one IEEE operation a lane, so the two widths agree to the bit.

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
inline Floats load_s8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
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
// 2^n for whole n in -126 .. 127.
inline Floats power_of_two(Floats n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_castsi512_ps(bits)};
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
inline Floats load_s8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
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
// 2^n for whole n in -126 .. 127.
inline Floats power_of_two(Floats n) { return {power_of_two_half(n.lo), power_of_two_half(n.hi)}; }
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

// e^x within 2 units in the last place for x <= 88; exactly 0 below -87 (and for -inf), 1 at 0.
// Range reduction by ln 2 in two parts and a degree-6 polynomial (Cephes' expf).
inline Floats exponential(Floats x) {
  const Floats lowest = broadcast(-87.0f);
  const Floats clamped = min(max(x, lowest), broadcast(88.0f));
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
  const Floats result = mul(p, power_of_two(n));
#if defined(__AVX512F__)
  return {_mm512_mask_mov_ps(result.v, _mm512_cmp_ps_mask(x.v, lowest.v, _CMP_LT_OQ), _mm512_setzero_ps())};
#else
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, lowest.lo, _CMP_LT_OQ), result.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, lowest.hi, _CMP_LT_OQ), result.hi)};
#endif
}
