// Weights of any kind but float32 times bfloat16 activations on matrix tiles: 16 tokens by 16 rows by
// 32 columns an instruction, for panels of every width.
//
// Codes minus zero points are whole numbers that bfloat16 holds exactly, so a weight group is summed
// first and scaled once. Activations lie in rows, the columns of each quad in the order 0, 2, 1, 3:
// that is how nibbles come out of a code line in pairs.
namespace linear_bfloat16_amx {

constexpr int kChunkBlocks = 8;                // blocks of 32 columns that are unpacked at a time
constexpr int kBlockColumns = 32;
constexpr int kHalfBlock = kBlockColumns * 16; // numbers of a block for 16 rows
constexpr int kMostPanels = 8;                 // of one call

// Tiles 0 .. 3: sums [width][16] of the low and high rows for a first and a second panel; 4, 5: the
// panels' values [width][32]; 6, 7: codes [16 pairs][16][2] of the low and high rows. Four products
// that do not wait for each other hide the latency of one.
constexpr TileConfig tiles_for(uint8_t width) {
  return {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {width, width, width, width, width, width, 16, 16}};
}
alignas(64) constexpr TileConfig kTiles[] = {tiles_for(1), tiles_for(2), tiles_for(4), tiles_for(8), tiles_for(16)};

const TileConfig& tiles_of(int width) {
  return kTiles[width == 1 ? 0 : width == 2 ? 1 : width == 4 ? 2 : width == 8 ? 3 : 4];
}

// Blocks of weight groups (or of a part of one), decoded: [block][half][16 pairs][16 rows][2].
struct Decoded {
  alignas(64) uint16_t numbers[kChunkBlocks * 2 * kHalfBlock];
  alignas(64) float scales[kChunkBlocks][kTileRows];  // of each group
};

// bfloat16 of -16 .. 15 by its lowest five bits.
inline __m512i small_numbers() {
  alignas(64) static constexpr uint16_t kTable[32] = {
      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
      0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
  return _mm512_load_si512(kTable);
}

// The bytes of each row's quad (columns 0 .. 3) as pairs of columns 0, 2 and of columns 1, 3.
inline void store_small(__m512i bytes, __m512i table, uint16_t* pairs) {
  _mm512_store_si512(pairs, _mm512_permutexvar_epi16(bytes, table));
  _mm512_store_si512(pairs + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 8), table));
}

inline void decode_int4(const uint8_t* codes, __m512i low_points, __m512i high_points, uint16_t* out) {
  const __m512i mask = _mm512_set1_epi8(0x0f), table = small_numbers();
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    const __m512i line = _mm512_load_si512(codes + 64 * quad);
    prefetch_quad<WeightKind::int4>(codes, quad);
    const __m512i low = _mm512_and_si512(line, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(line, 4), mask);
    store_small(_mm512_sub_epi8(low, low_points), table, out + 64 * quad);
    store_small(_mm512_sub_epi8(high, high_points), table, out + kHalfBlock + 64 * quad);
  }
}

// Sixteen words' bytes at bit kShift minus a zero point, as floats: whole numbers.
template <int kShift>
inline __m512i byte_minus(__m512i words, __m512 points) {
  const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(words, kShift), _mm512_set1_epi32(255));
  return _mm512_castps_si512(_mm512_sub_ps(_mm512_cvtepi32_ps(byte), points));
}

// Two vectors of floats that bfloat16 holds exactly, as pairs.
inline __m512i pairs_of(__m512i first, __m512i second) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
}

inline void decode_int8_line(const uint8_t* line, __m512 points, uint16_t* out) {
  const __m512i words = _mm512_load_si512(line);
  _mm512_store_si512(out, pairs_of(byte_minus<0>(words, points), byte_minus<16>(words, points)));
  _mm512_store_si512(out + 32, pairs_of(byte_minus<8>(words, points), byte_minus<24>(words, points)));
}

inline void decode_int8(const uint8_t* codes, __m512 low_points, __m512 high_points, uint16_t* out) {
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    prefetch_quad<WeightKind::int8>(codes, quad);
    decode_int8_line(codes + 128 * quad, low_points, out + 64 * quad);
    decode_int8_line(codes + 128 * quad + 64, high_points, out + kHalfBlock + 64 * quad);
  }
}

// Two lines of pairs, columns (0, 1) and (2, 3), as (0, 2) and (1, 3).
inline void decode_bfloat16(const uint8_t* lines, uint16_t* out) {
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* line = lines + 256 * quad + 64 * half;
      const __m512i first = _mm512_load_si512(line), second = _mm512_load_si512(line + 128);
      uint16_t* to = out + half * kHalfBlock + 64 * quad;
      _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(line) + 128 + kPrefetchBytes, _MM_HINT_T0);
      _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16)));
      _mm512_store_si512(to + 32, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second));
    }
  }
}

// Zero points of a weight group in the form that its decoder takes.
struct Points {
  __m512i low_bytes, high_bytes;
  __m512 low, high;
};

template <WeightKind kKind>
Points load_points(const uint8_t* zero_line, bool stored) {
  Points points{};
  if constexpr (kKind == WeightKind::int4) {
    points.low_bytes = points.high_bytes = _mm512_set1_epi8(8);
    if (stored) spread_points(zero_line, points.low_bytes, points.high_bytes);
  } else if constexpr (kKind == WeightKind::int8) {
    points.low = points.high = _mm512_set1_ps(128.0f);
    if (stored) {
      const __m512i pairs = _mm512_load_si512(zero_line);
      points.low = _mm512_cvtepi32_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)));
      points.high = _mm512_cvtepi32_ps(_mm512_srli_epi32(pairs, 16));
    }
  }
  return points;
}

template <WeightKind kKind>
void decode_block(const uint8_t* codes, const Points& points, uint16_t* out) {
  if constexpr (kKind == WeightKind::int4) decode_int4(codes, points.low_bytes, points.high_bytes, out);
  if constexpr (kKind == WeightKind::int8) decode_int8(codes, points.low, points.high, out);
  if constexpr (kKind == WeightKind::bfloat16) decode_bfloat16(codes, out);
}

// Adds `blocks` decoded blocks times one or two panels to the sums in tiles 0 .. 3.
template <int kPanels>
inline void add_blocks(const uint16_t* numbers, int blocks, const uint16_t* values, int64_t columns,
                       int64_t panel_values) {
  const int64_t stride = columns * 2;
  for (int block = 0; block < blocks; ++block, values += kBlockColumns, numbers += 2 * kHalfBlock) {
    _tile_loadd(4, values, stride);
    _tile_loadd(6, numbers, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, numbers + kHalfBlock, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kPanels == 2) {
      _tile_loadd(5, values + panel_values, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Whole weight groups, decoded, times one or two panels: out[token][32] = fma(sums of a group, scales,
// out) for each in turn. Its sums are scaled while the next group's products run.
template <int kPanels, int kWidth>
void add_groups(const Decoded& decoded, int groups, int group_blocks, const uint16_t* values, int64_t columns,
                float* out) {
  constexpr int kTokens = kPanels * kWidth;
  alignas(64) float sums[2][kTokens * kTileRows];
  const auto issue = [&](int group) {
    float* to = sums[group % 2];
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kPanels == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    const int block = group * group_blocks;
    add_blocks<kPanels>(decoded.numbers + block * 2 * kHalfBlock, group_blocks, values + block * kBlockColumns,
                        columns, kWidth * columns);
    _tile_stored(0, to, kTileRows * 4);
    _tile_stored(1, to + 16, kTileRows * 4);
    if constexpr (kPanels == 2) {
      _tile_stored(2, to + kWidth * kTileRows, kTileRows * 4);
      _tile_stored(3, to + kWidth * kTileRows + 16, kTileRows * 4);
    }
  };
  issue(0);
  for (int group = 0; group < groups; ++group) {
    if (group + 1 < groups) issue(group + 1);
    const float* from = sums[group % 2];
    const __m512 low = _mm512_load_ps(decoded.scales[group]), high = _mm512_load_ps(decoded.scales[group] + 16);
#pragma GCC unroll 8
    for (int i = 0; i < kTokens * kTileRows; i += kTileRows) {
      _mm512_store_ps(out + i, _mm512_fmadd_ps(_mm512_load_ps(from + i), low, _mm512_load_ps(out + i)));
      _mm512_store_ps(out + i + 16, _mm512_fmadd_ps(_mm512_load_ps(from + i + 16), high, _mm512_load_ps(out + i + 16)));
    }
  }
}

// A part of a group that is too long to be decoded at once, times panels, added to sums[token][32].
template <int kPanels>
void add_part(const Decoded& decoded, int blocks, const uint16_t* values, int64_t columns, int width, float* sums) {
  float* second = sums + width * kTileRows;
  _tile_loadd(0, sums, kTileRows * 4);
  _tile_loadd(1, sums + 16, kTileRows * 4);
  if constexpr (kPanels == 2) {
    _tile_loadd(2, second, kTileRows * 4);
    _tile_loadd(3, second + 16, kTileRows * 4);
  }
  add_blocks<kPanels>(decoded.numbers, blocks, values, columns, width * columns);
  _tile_stored(0, sums, kTileRows * 4);
  _tile_stored(1, sums + 16, kTileRows * 4);
  if constexpr (kPanels == 2) {
    _tile_stored(2, second, kTileRows * 4);
    _tile_stored(3, second + 16, kTileRows * 4);
  }
}

void clear(float* p, int n) {
  for (int i = 0; i < n; i += 16) _mm512_store_ps(p + i, _mm512_setzero_ps());
}

constexpr int block_bytes(WeightKind kind) {
  return kind == WeightKind::bfloat16 ? kBlockColumns * kTileRows * 2 : code_bytes(kind);
}

// Reads a tile weight group by weight group.
template <WeightKind kKind>
struct GroupReader {
  const uint8_t* codes;
  bool zero_points;
  int blocks;  // of a group

  const uint8_t* scale_line() const { return codes + blocks * block_bytes(kKind); }
  const uint8_t* zero_line() const { return scale_line() + scale_bytes(kKind); }
  void decode(int first, int count, uint16_t* out) const {
    const Points points = load_points<kKind>(zero_line(), zero_points);
    for (int i = 0; i < count; ++i) {
      decode_block<kKind>(codes + (first + i) * block_bytes(kKind), points, out + i * 2 * kHalfBlock);
    }
  }
  void next() { codes = zero_line() + (zero_points ? 64 : 0); }
};

template <WeightKind kKind, int kWidth>
void multiply_short_groups(const Weight& weight, const uint8_t* tile, const uint16_t* values, int panels,
                           float* out) {
  GroupReader<kKind> reader{tile, weight.zero_points, weight.group / kBlockColumns};
  const int all = weight.columns / weight.group, most = kChunkBlocks / reader.blocks;
  Decoded decoded;
  clear(out, panels * kWidth * kTileRows);
  for (int group = 0; group < all; group += most) {
    const int groups = all - group < most ? all - group : most;
    for (int i = 0; i < groups; ++i, reader.next()) {
      reader.decode(0, reader.blocks, decoded.numbers + i * reader.blocks * 2 * kHalfBlock);
      const RowScales scales = load_row_scales<kKind>(reader.scale_line());
      _mm512_store_ps(decoded.scales[i], scales.low);
      _mm512_store_ps(decoded.scales[i] + 16, scales.high);
    }
    for (int panel = 0; panel < panels; panel += 2) {
      const uint16_t* x = values + static_cast<int64_t>(panel) * kWidth * weight.columns + group * weight.group;
      const auto add = panel + 1 < panels ? add_groups<2, kWidth> : add_groups<1, kWidth>;
      add(decoded, groups, reader.blocks, x, weight.columns, out + panel * kWidth * kTileRows);
    }
  }
}

// Groups longer than what is decoded at once, and bfloat16 weights: sums stay in `out` or beside it.
template <WeightKind kKind>
void multiply_long_groups(const Weight& weight, const uint8_t* tile, const uint16_t* values, int panels, int width,
                          float* out) {
  constexpr bool kInteger = kKind != WeightKind::bfloat16;
  const int group = kInteger ? weight.group : weight.columns, numbers = panels * width * kTileRows;
  GroupReader<kKind> reader{tile, weight.zero_points, group / kBlockColumns};
  Decoded decoded;
  alignas(64) float sums[kMostPanels * 16 * kTileRows];
  clear(out, numbers);
  for (int column = 0; column < weight.columns; column += group) {
    clear(sums, numbers);
    for (int block = 0; block < reader.blocks; block += kChunkBlocks) {
      const int left = reader.blocks - block, blocks = left < kChunkBlocks ? left : kChunkBlocks;
      reader.decode(block, blocks, decoded.numbers);
      const uint16_t* x = values + column + block * kBlockColumns;
      for (int panel = 0; panel < panels; panel += 2) {
        const auto add = panel + 1 < panels ? add_part<2> : add_part<1>;
        add(decoded, blocks, x + static_cast<int64_t>(panel) * width * weight.columns, weight.columns, width,
            sums + panel * width * kTileRows);
      }
    }
    RowScales scales{_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f)};
    if constexpr (kInteger) scales = load_row_scales<kKind>(reader.scale_line());
    for (int i = 0; i < numbers; i += kTileRows) {
      _mm512_store_ps(out + i, _mm512_fmadd_ps(_mm512_load_ps(sums + i), scales.low, _mm512_load_ps(out + i)));
      _mm512_store_ps(out + i + 16,
                      _mm512_fmadd_ps(_mm512_load_ps(sums + i + 16), scales.high, _mm512_load_ps(out + i + 16)));
    }
    if constexpr (kInteger) reader.next();
  }
}

template <WeightKind kKind>
void multiply_integers(const Weight& weight, const uint8_t* tile, const uint16_t* values, int panels, int width,
                       float* out) {
  if (weight.group > kChunkBlocks * kBlockColumns) {
    multiply_long_groups<kKind>(weight, tile, values, panels, width, out);
    return;
  }
  switch (width) {
    case 1: multiply_short_groups<kKind, 1>(weight, tile, values, panels, out); break;
    case 2: multiply_short_groups<kKind, 2>(weight, tile, values, panels, out); break;
    case 4: multiply_short_groups<kKind, 4>(weight, tile, values, panels, out); break;
    case 8: multiply_short_groups<kKind, 8>(weight, tile, values, panels, out); break;
    default: multiply_short_groups<kKind, 16>(weight, tile, values, panels, out);
  }
}

void multiply(const Weight& weight, const uint8_t* tile, const uint16_t* values, int panels, int width, float* out) {
  _tile_loadconfig(&tiles_of(width));
  switch (weight.kind) {
    case WeightKind::int4: multiply_integers<WeightKind::int4>(weight, tile, values, panels, width, out); break;
    case WeightKind::int8: multiply_integers<WeightKind::int8>(weight, tile, values, panels, width, out); break;
    default: multiply_long_groups<WeightKind::bfloat16>(weight, tile, values, panels, width, out);
  }
  _tile_release();
}

void linear(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  if (x.form != ActivationForm::bfloat16 || weight.kind == WeightKind::float32) {
    linear_float::linear(weight, tile, x, first, count, out);
    return;
  }
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  const uint16_t* values = static_cast<const uint16_t*>(x.values);
  for (const int end = first + count; first < end;) {
    const int full = (x.last == x.panel ? x.panels : x.panels - 1) - first;
    const int wanted = end - first < kMostPanels ? end - first : kMostPanels;
    const int panels = full <= 0 ? 1 : full < wanted ? full : wanted;
    const int width = full <= 0 ? x.last : x.panel;
    multiply(weight, data, values + static_cast<int64_t>(first) * x.panel * x.columns, panels, width, out);
    out += panels * width * kTileRows;
    first += panels;
  }
}

// Rows of bfloat16, quads in the order 0, 2, 1, 3; missing tokens zero.
void fill_rows(const float* x, int64_t stride, int tokens, int width, int columns, uint16_t* values) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int t = 0; t < width; ++t, values += columns) {
    for (int k = 0; k < columns; k += kBlockColumns) {
      __m512i numbers = _mm512_setzero_si512();
      if (t < tokens) {
        const float* from = x + t * stride + k;
        numbers = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
      }
      _mm512_storeu_si512(values + k, _mm512_shuffle_epi8(numbers, order));
    }
  }
}

void fill_panel(ActivationForm form, const float* x, int64_t stride, int tokens, int width, int columns, void* values,
                float* scales, int32_t* sums) {
  if (form == ActivationForm::bfloat16) {
    fill_rows(x, stride, tokens, width, columns, static_cast<uint16_t*>(values));
  } else {
    gristmill::fill_panel(form, x, stride, tokens, width, columns, values, scales, sums);
  }
}

}  // namespace linear_bfloat16_amx

void set_linear_bfloat16_tile_kernels(KernelTable& table) {
  table.linear_float = linear_bfloat16_amx::linear;
  table.fill_panel = linear_bfloat16_amx::fill_panel;
}
