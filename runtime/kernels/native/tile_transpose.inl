// Turning sixteen registers of sixteen 32-bit words over: rows become columns.

// out[i] word j = in[j] word i.
inline void transpose_words16(const __m512i* in, __m512i* out) {
  __m512i pairs[16], fours[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xdd);
    out[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    out[4 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    out[8 + i] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    out[12 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}
