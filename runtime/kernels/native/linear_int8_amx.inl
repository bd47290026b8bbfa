// Integer weights times int8 activations on matrix tiles: 16 rows by 16 tokens by 32 columns an
// instruction. Panels narrower than 16 go to the AVX-512 kernel.
//
// The int32 sums are exact and the float formula is the same, so results equal AVX-512's to the bit.

constexpr int kChunkGroups = 16;  // activation groups whose codes are unpacked at a time
constexpr int kGroupsAhead = 4;   // products in flight while one is scaled
constexpr int kHalfBytes = kActivationGroup * 16;

// In read-only memory: gcc 12's _tile_loadconfig does not tell the compiler that it reads all 64 bytes,
// so stores to one on the stack may be dropped.
struct TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

// Sums [16][16] int32, values [16][32] int8, codes [8][16][4] int8.
alignas(64) constexpr TileConfig kGroupTiles = {1, 0, {}, {64, 32, 64}, {16, 16, 8}};

// One group's codes minus zero points as int8: kHalfBytes for rows 0..15, then for rows 16..31, each
// eight lines of 16 rows by 4 columns.
template <WeightKind kKind>
inline void unpack_group(const uint8_t* codes, __m512i low_points, __m512i high_points, int8_t* out) {
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    __m512i low, high;
    load_codes<kKind>(codes, quad, low, high);
    prefetch_quad<kKind>(codes, quad);
    if constexpr (kKind == WeightKind::int4) high = _mm512_srli_epi16(high, 4);
    _mm512_store_si512(out + 64 * quad, _mm512_sub_epi8(low, low_points));
    _mm512_store_si512(out + kHalfBytes + 64 * quad, _mm512_sub_epi8(high, high_points));
  }
}

// Zero points (int16 pairs of rows r and 16 + r) as bytes, one four times for its row's quad.
inline void spread_points(const uint8_t* zero_line, __m512i& low, __m512i& high) {
  const __m512i pairs = _mm512_load_si512(zero_line);
  const __m512i ones = _mm512_set1_epi32(0x01010101);
  low = _mm512_mullo_epi32(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)), ones);
  high = _mm512_mullo_epi32(_mm512_srli_epi32(pairs, 16), ones);
}

// Zero points (int16 pairs of rows r and 16 + r) minus 128, by row.
inline void store_offsets(const uint8_t* zero_line, int32_t* offsets) {
  const __m512i pairs = _mm512_load_si512(zero_line);
  const __m512i middle = _mm512_set1_epi32(128);
  _mm512_store_si512(offsets, _mm512_sub_epi32(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)), middle));
  _mm512_store_si512(offsets + 16, _mm512_sub_epi32(_mm512_srli_epi32(pairs, 16), middle));
}

// `offsets` are what an int8 weight's zero points have beyond 128: code - zero point may need 9 bits,
// so the codes are unpacked minus 128 and the rest is taken off the sums.
struct Unpacked {
  alignas(64) int8_t codes[kChunkGroups * 2 * kHalfBytes];
  alignas(64) float scales[kChunkGroups * kTileRows];
  alignas(64) int32_t offsets[kChunkGroups * kTileRows];
};

// A reader of a tile, activation group by activation group.
struct TileCursor {
  const uint8_t* codes;  // of the current weight group
  int inner = 0;         // activation groups of it that are done
};

template <WeightKind kKind>
void unpack_chunk(const Weight& weight, TileCursor& cursor, int groups, Unpacked& unpacked) {
  const int inner = weight.group / kActivationGroup;
  for (int i = 0; i < groups; ++i) {
    const uint8_t* scale_line = cursor.codes + inner * code_bytes(kKind);
    const uint8_t* zero_line = scale_line + scale_bytes(kKind);
    __m512i low = _mm512_set1_epi8(static_cast<char>(kKind == WeightKind::int4 ? 8 : 128)), high = low;
    if (kKind == WeightKind::int4 && weight.zero_points) spread_points(zero_line, low, high);
    if (kKind == WeightKind::int8 && weight.zero_points) store_offsets(zero_line, unpacked.offsets + i * kTileRows);
    unpack_group<kKind>(cursor.codes + cursor.inner * code_bytes(kKind), low, high,
                        unpacked.codes + i * 2 * kHalfBytes);
    const RowScales scales = load_row_scales<kKind>(scale_line);
    _mm512_store_ps(unpacked.scales + i * kTileRows, scales.low);
    _mm512_store_ps(unpacked.scales + i * kTileRows + 16, scales.high);
    if (++cursor.inner == inner) cursor = {zero_line + (weight.zero_points ? 64 : 0)};
  }
}

// Issues one group's product of 16 tokens and 16 rows; it lands in `sums` [16 tokens][16 rows].
inline void multiply_tiles(const int8_t* values, int64_t stride, const int8_t* codes, int32_t* sums) {
  _tile_loadd(1, values, stride);
  _tile_loadd(2, codes, 64);
  _tile_zero(0);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, sums, 64);
}

// Takes offset * (sum of the token's values) off each sum.
inline void subtract_offsets(const int32_t* value_sums, const int32_t* offsets, int32_t* sums) {
  const __m512i rows = _mm512_load_si512(offsets);
  for (int t = 0; t < 16; ++t) {
    const __m512i excess = _mm512_mullo_epi32(rows, _mm512_set1_epi32(value_sums[t]));
    _mm512_store_si512(sums + 16 * t, _mm512_sub_epi32(_mm512_load_si512(sums + 16 * t), excess));
  }
}

inline void add_sums(const int32_t* sums, const float* value_scales, __m512 row_scales, __m512 (&out)[16]) {
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    const __m512 scaled =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * t)), _mm512_set1_ps(value_scales[t]));
    out[t] = _mm512_fmadd_ps(scaled, row_scales, out[t]);
  }
}

// The chunk's groups for 16 tokens and one half of the tile's rows, added to out[token * 32]. While
// one group's sums are scaled, the products of the next ones run.
template <bool kOffsets>
void multiply_half(const Unpacked& unpacked, int half, int groups, const int8_t* values, int64_t stride,
                   const float* value_scales, const int32_t* value_sums, float* out) {
  alignas(64) int32_t sums[kGroupsAhead][256];
  const int8_t* codes = unpacked.codes + half * kHalfBytes;
  const float* scales = unpacked.scales + half * 16;
  const auto issue = [&](int i) {
    multiply_tiles(values + i * kActivationGroup, stride, codes + i * 2 * kHalfBytes, sums[i % kGroupsAhead]);
  };
  __m512 totals[16];
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) totals[t] = _mm512_load_ps(out + t * kTileRows);
  for (int i = 0; i < groups && i < kGroupsAhead; ++i) issue(i);
  for (int i = 0; i < groups; ++i) {
    if constexpr (kOffsets) {
      subtract_offsets(value_sums + i * 16, unpacked.offsets + i * kTileRows + half * 16, sums[i % kGroupsAhead]);
    }
    add_sums(sums[i % kGroupsAhead], value_scales + i * 16, _mm512_load_ps(scales + i * kTileRows), totals);
    if (i + kGroupsAhead < groups) issue(i + kGroupsAhead);
  }
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) _mm512_store_ps(out + t * kTileRows, totals[t]);
}

template <WeightKind kKind>
void multiply_wide_panels(const Weight& weight, const uint8_t* tile, const Activations& x, int first, int count,
                          float* out) {
  Unpacked unpacked;
  const auto multiply =
      kKind == WeightKind::int8 && weight.zero_points ? multiply_half<true> : multiply_half<false>;
  for (int i = 0; i < count * 16 * kTileRows; i += 16) _mm512_store_ps(out + i, _mm512_setzero_ps());
  TileCursor cursor{tile};
  const int all = weight.columns / kActivationGroup;
  for (int group = 0; group < all; group += kChunkGroups) {
    const int groups = all - group < kChunkGroups ? all - group : kChunkGroups;
    unpack_chunk<kKind>(weight, cursor, groups, unpacked);
    for (int panel = 0; panel < count; ++panel) {
      const int64_t start = static_cast<int64_t>(first + panel) * 16 * x.columns;
      const int8_t* values = static_cast<const int8_t*>(x.values) + start + group * kActivationGroup;
      const int64_t scale = start / kActivationGroup + group * 16;
      for (int half = 0; half < 2; ++half) {
        multiply(unpacked, half, groups, values, x.columns, x.scales + scale, x.sums + scale,
                 out + panel * 16 * kTileRows + half * 16);
      }
    }
  }
}

void linear_int8_tiles(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  const bool narrow_last = first + count == x.panels && x.last != 16;
  const int wide = x.panel != 16 ? 0 : narrow_last ? count - 1 : count;
  if (wide > 0) {
    _tile_loadconfig(&kGroupTiles);
    const uint8_t* data = weight.data + tile * weight.tile_bytes;
    if (is_int4(weight.kind)) {
      multiply_wide_panels<WeightKind::int4>(weight, data, x, first, wide, out);
    } else {
      multiply_wide_panels<WeightKind::int8>(weight, data, x, first, wide, out);
    }
    _tile_release();
  }
  if (wide < count) linear_int8(weight, tile, x, first + wide, count - wide, out + wide * 16 * kTileRows);
}

void set_linear_int8_tile_kernels(KernelTable& table) { table.linear_int8 = linear_int8_tiles; }
