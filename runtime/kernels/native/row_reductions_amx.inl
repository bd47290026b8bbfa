// The sum or the largest of each row's sixteen lanes, for many rows together.
//
// Included by attention_amx.inl. Lanes are taken together in the same order for any number of rows: those 8
// apart, then 4, 2 and 1.

struct Adding {
  static __m512 two(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static float lanes(__m512 a) { return _mm512_reduce_add_ps(a); }
};
struct Largest {
  static __m512 two(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static float lanes(__m512 a) { return _mm512_reduce_max_ps(a); }
};

// Each step halves the lanes of a row and takes two registers together.
template <class Op>
inline __m512 reduce_sixteen(const Floats* x) {
  __m512 eights[8], fours[4], twos[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    eights[i] = Op::two(_mm512_shuffle_f32x4(x[i].v, x[i + 8].v, 0x44),
                        _mm512_shuffle_f32x4(x[i].v, x[i + 8].v, 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    fours[i] = Op::two(_mm512_shuffle_f32x4(eights[i], eights[i + 4], 0x88),
                       _mm512_shuffle_f32x4(eights[i], eights[i + 4], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(fours[i]), b = _mm512_castps_pd(fours[i + 2]);
    twos[i] = Op::two(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 all = Op::two(_mm512_shuffle_ps(twos[0], twos[1], 0x88),
                             _mm512_shuffle_ps(twos[0], twos[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, all);
}

// x has room for whole sixteens of rows, and so has out.
template <class Op>
void reduce_rows(const Floats* x, int rows, float* out) {
  constexpr int kFew = 4;
  if (rows <= kFew) {
    for (int r = 0; r < rows; ++r) out[r] = Op::lanes(x[r].v);
    return;
  }
  for (int r = 0; r < rows; r += 16) _mm512_storeu_ps(out + r, reduce_sixteen<Op>(x + r));
}
