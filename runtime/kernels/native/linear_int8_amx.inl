// Integer weights times int8 activations on matrix tiles: 16 rows by 16 tokens by 32 columns an
// instruction. Panels narrower than 16 go to the AVX-512 kernel.
//
// The int32 sums are exact and the float formula is the same, so results equal AVX-512's to the bit.

constexpr int kChunkGroups = 16;  // activation groups whose codes are unpacked at a time
constexpr int kHalfBytes = kActivationGroup * 16;

struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 0, 0, 32, 32, 64, 64};
  uint8_t rows[16] = {16, 16, 0, 0, 16, 16, 8, 8};
};

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

struct Unpacked {
  alignas(64) int8_t codes[kChunkGroups * 2 * kHalfBytes];
  alignas(64) float scales[kChunkGroups * kTileRows];
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
    if (weight.zero_points) spread_points(zero_line, low, high);
    unpack_group<kKind>(cursor.codes + cursor.inner * code_bytes(kKind), low, high,
                        unpacked.codes + i * 2 * kHalfBytes);
    const RowScales scales = load_row_scales<kKind>(scale_line);
    _mm512_store_ps(unpacked.scales + i * kTileRows, scales.low);
    _mm512_store_ps(unpacked.scales + i * kTileRows + 16, scales.high);
    if (++cursor.inner == inner) cursor = {zero_line + (weight.zero_points ? 64 : 0)};
  }
}

// Issues one group's product of 16 tokens and 16 rows; it lands in `sums` [16 tokens][16 rows].
// Tile registers are named in the instruction: one function for each of the two that alternate.
#define GRISTMILL_MULTIPLY_TILES(name, sum_tile, value_tile, code_tile)                              \
  inline void name(const int8_t* values, int64_t stride, const int8_t* codes, int32_t* sums) { \
    _tile_loadd(value_tile, values, stride);                                                         \
    _tile_loadd(code_tile, codes, 64);                                                               \
    _tile_zero(sum_tile);                                                                            \
    _tile_dpbssd(sum_tile, value_tile, code_tile);                                                   \
    _tile_stored(sum_tile, sums, 64);                                                                \
  }
GRISTMILL_MULTIPLY_TILES(multiply_even, 0, 4, 6)
GRISTMILL_MULTIPLY_TILES(multiply_odd, 1, 5, 7)
#undef GRISTMILL_MULTIPLY_TILES

inline void add_sums(const int32_t* sums, const float* value_scales, __m512 row_scales, __m512 (&out)[16]) {
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    const __m512 scaled =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * t)), _mm512_set1_ps(value_scales[t]));
    out[t] = _mm512_fmadd_ps(scaled, row_scales, out[t]);
  }
}

// The chunk's groups for 16 tokens and one half of the tile's rows, added to out[token * 32].
// While one group's sums are scaled, the next one's product runs.
void multiply_half(const Unpacked& unpacked, int half, int groups, const int8_t* values, int64_t stride,
                   const float* value_scales, float* out) {
  alignas(64) int32_t even[256], odd[256];
  const int8_t* codes = unpacked.codes + half * kHalfBytes;
  const float* scales = unpacked.scales + half * 16;
  __m512 totals[16];
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) totals[t] = _mm512_load_ps(out + t * kTileRows);
  multiply_even(values, stride, codes, even);
  for (int i = 0; i < groups; i += 2) {
    if (i + 1 < groups) {
      multiply_odd(values + (i + 1) * kActivationGroup, stride, codes + (i + 1) * 2 * kHalfBytes, odd);
    }
    add_sums(even, value_scales + i * 16, _mm512_load_ps(scales + i * kTileRows), totals);
    if (i + 1 == groups) break;
    if (i + 2 < groups) {
      multiply_even(values + (i + 2) * kActivationGroup, stride, codes + (i + 2) * 2 * kHalfBytes, even);
    }
    add_sums(odd, value_scales + (i + 1) * 16, _mm512_load_ps(scales + (i + 1) * kTileRows), totals);
  }
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) _mm512_store_ps(out + t * kTileRows, totals[t]);
}

template <WeightKind kKind>
void multiply_wide_panels(const Weight& weight, const uint8_t* tile, const Activations& x, int first, int count,
                          float* out) {
  Unpacked unpacked;
  for (int i = 0; i < count * 16 * kTileRows; i += 16) _mm512_store_ps(out + i, _mm512_setzero_ps());
  TileCursor cursor{tile};
  const int all = weight.columns / kActivationGroup;
  for (int group = 0; group < all; group += kChunkGroups) {
    const int groups = all - group < kChunkGroups ? all - group : kChunkGroups;
    unpack_chunk<kKind>(weight, cursor, groups, unpacked);
    for (int panel = 0; panel < count; ++panel) {
      const int64_t start = static_cast<int64_t>(first + panel) * 16 * x.columns;
      const int8_t* values = static_cast<const int8_t*>(x.values) + start + group * kActivationGroup;
      const float* scales = x.scales + start / kActivationGroup + group * 16;
      for (int half = 0; half < 2; ++half) {
        multiply_half(unpacked, half, groups, values, x.columns, scales,
                      out + panel * 16 * kTileRows + half * 16);
      }
    }
  }
}

void linear_int8_tiles(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  int wide = count;
  if (first + count == x.panels && x.last != 16) --wide;
  if (wide > 0) {
    const TileConfig config;
    _tile_loadconfig(&config);
    const uint8_t* data = weight.data + tile * weight.tile_bytes;
    if (is_int4(weight.kind)) {
      multiply_wide_panels<WeightKind::int4>(weight, data, x, first, wide, out);
    } else {
      multiply_wide_panels<WeightKind::int8>(weight, data, x, first, wide, out);
    }
    _tile_release();
  }
  if (wide < count) linear_int8(weight, tile, x, first + wide, 1, out + wide * 16 * kTileRows);
}

void set_linear_int8_tile_kernels(KernelTable& table) { table.linear_int8 = linear_int8_tiles; }
