// The rotation of keys in front of a quantized cache, and of the queries that read them, in registers.
//
// Included inside the anonymous namespace of an instruction set's unit, after vectors.inl. Each number
// goes through the same sums and differences, largest stride first, in every instruction set.

// Lane i gets lane i ^ kStride.
template <int kStride>
inline Floats exchange_lanes(Floats a) {
#if defined(__AVX512F__)
  if (kStride == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  if (kStride == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  if (kStride == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
#else
  if (kStride == 1) return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
  if (kStride == 2) return {_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
  if (kStride == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  return {a.hi, a.lo};
#endif
}

alignas(64) constexpr float kButterflySigns[4][16] = {
    {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
    {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
    {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
};

// Sums and differences of lanes kStride apart. Times 1 or -1 is exact: rounded once, as a sum is.
template <int kStride>
inline Floats butterfly(Floats a) {
  constexpr int kIndex = kStride == 1 ? 0 : kStride == 2 ? 1 : kStride == 4 ? 2 : 3;
  return fmadd(a, load(kButterflySigns[kIndex]), exchange_lanes<kStride>(a));
}

// The stages of a block inside one register.
inline Floats turn_lanes(Floats a, int block) {
  if (block > 8) a = butterfly<8>(a);
  if (block > 4) a = butterfly<4>(a);
  if (block > 2) a = butterfly<2>(a);
  return block > 1 ? butterfly<1>(a) : a;
}

// A block of 16 kRegisters numbers.
template <int kRegisters>
inline void turn_block(float* x, Floats norm) {
  Floats part[kRegisters];
#pragma GCC unroll 16
  for (int i = 0; i < kRegisters; ++i) part[i] = load(x + 16 * i);
#pragma GCC unroll 4
  for (int stride = kRegisters / 2; stride > 0; stride /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisters; ++i) {
      if ((i & stride) != 0) continue;
      const Floats first = part[i], second = part[i + stride];
      part[i] = add(first, second);
      part[i + stride] = sub(first, second);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRegisters; ++i) store(x + 16 * i, mul(turn_lanes(part[i], 16), norm));
}

void hadamard(float* x, int n) {
  const int block = n & -n;
  float root = 1.0f;  // of 1 / block
  int rest = block;
  for (; rest >= 4; rest /= 4) root *= 0.5f;
  if (rest == 2) root *= 0.70710678118654752f;
  const Floats norm = broadcast(root);
  if (block <= 16) {
    for (int i = 0; i < n; i += 16)
      store_first(x + i, mul(turn_lanes(load_first(x + i, n - i), block), norm), n - i);
    return;
  }
  for (int start = 0; start < n; start += block) {
    switch (block) {
      case 32: turn_block<2>(x + start, norm); break;
      case 64: turn_block<4>(x + start, norm); break;
      case 128: turn_block<8>(x + start, norm); break;
      default: turn_block<16>(x + start, norm); break;
    }
  }
}
