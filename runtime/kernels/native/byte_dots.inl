// Dot products of bytes: sixteen int32 sums of four products each, in the registers of the including
// unit's instruction set.
//
// Included by attention.inl, after vectors.inl. One operand is unsigned and one signed. Where the
// instruction set has no such dot product, two neighbouring products together must stay within int16.

#if defined(__AVX512F__)
struct Bytes {
  __m512i v;
};
struct ByteSums {
  __m512i v;
};
inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes repeat_quad(const uint8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return {_mm512_set1_epi32(quad)};
}
inline ByteSums no_sums() { return {_mm512_setzero_si512()}; }
inline ByteSums times_128(ByteSums a) { return {_mm512_slli_epi32(a.v, 7)}; }
inline ByteSums minus(ByteSums a, int32_t b) { return {_mm512_sub_epi32(a.v, _mm512_set1_epi32(b))}; }
inline Floats to_floats(ByteSums a) { return {_mm512_cvtepi32_ps(a.v)}; }
// gcc 12 copies a register around every _mm512_dpbusd_epi32 of an unrolled array; this does not.
inline void add_dots(ByteSums& sums, Bytes is_unsigned, Bytes is_signed) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(is_unsigned.v), "v"(is_signed.v));
}
#else
struct Bytes {
  __m256i lo, hi;
};
struct ByteSums {
  __m256i lo, hi;
};
inline Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Bytes repeat_quad(const uint8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return {_mm256_set1_epi32(quad), _mm256_set1_epi32(quad)};
}
inline ByteSums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline ByteSums times_128(ByteSums a) { return {_mm256_slli_epi32(a.lo, 7), _mm256_slli_epi32(a.hi, 7)}; }
inline ByteSums minus(ByteSums a, int32_t b) {
  return {_mm256_sub_epi32(a.lo, _mm256_set1_epi32(b)), _mm256_sub_epi32(a.hi, _mm256_set1_epi32(b))};
}
inline Floats to_floats(ByteSums a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline __m256i add_dots_half(__m256i sums, __m256i is_unsigned, __m256i is_signed) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sums, is_unsigned, is_signed);
#else
  const __m256i pairs = _mm256_maddubs_epi16(is_unsigned, is_signed);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
inline void add_dots(ByteSums& sums, Bytes is_unsigned, Bytes is_signed) {
  sums.lo = add_dots_half(sums.lo, is_unsigned.lo, is_signed.lo);
  sums.hi = add_dots_half(sums.hi, is_unsigned.hi, is_signed.hi);
}
#endif
