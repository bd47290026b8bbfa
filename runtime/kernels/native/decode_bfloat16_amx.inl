// Weight tiles as bfloat16 numbers in the rows of matrix tiles.
//
// A decoded number is (code - zero point) * scale, rounded to float32 and then to bfloat16, as weight-only
// quantization means it elsewhere: all columns of a row can then be summed in one go. Where a row of int8 has
// one scale, the number is code - zero point, which bfloat16 holds, and sums are scaled. Columns are decoded
// 64 at a time: first those with even indices, then those with odd ones, 32 numbers of a row each; the last
// 32 of an odd number of 32s are one such row of 16 even and 16 odd columns. So the bytes of 16 turned-over
// code lines are two rows of table indices as they stand.
namespace decode_bfloat16_amx {

constexpr int kStepColumns = 32;                // columns of one matrix tile
constexpr int kHalfStep = kStepColumns * 16;    // its numbers, for 16 rows
constexpr int kStep = 2 * kHalfStep;            // of all 32 rows
constexpr int kPrefetchBytes = 4096;  // ahead of what is decoded

constexpr bool is_integer(WeightKind kind) { return kind != WeightKind::bfloat16; }

// Bytes of 32 columns without scales.
constexpr int step_bytes(WeightKind kind) {
  return is_integer(kind) ? code_bytes(kind) : kStepColumns * kTileRows * 2;
}

// Scales and zero points of one weight group by row.
struct RowParameters {
  alignas(64) float scales[kTileRows];
  alignas(64) float points[kTileRows];  // of int8, plus 2^23
};

template <WeightKind kKind>
inline void load_parameters(const uint8_t* scale_line, bool zero_points, RowParameters& to) {
  const RowScales scales = load_row_scales<kKind>(scale_line);
  _mm512_store_ps(to.scales, scales.low);
  _mm512_store_ps(to.scales + 16, scales.high);
  __m512 low = _mm512_set1_ps(kKind == WeightKind::int4 ? 8.0f : 128.0f), high = low;
  if (zero_points) {
    const __m512i pairs = _mm512_load_si512(scale_line + scale_bytes(kKind));
    low = _mm512_cvtepi32_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)));
    high = _mm512_cvtepi32_ps(_mm512_srli_epi32(pairs, 16));
  }
  const __m512 offset = _mm512_set1_ps(kKind == WeightKind::int8 ? 0x1p23f : 0.0f);
  _mm512_store_ps(to.points, _mm512_add_ps(low, offset));
  _mm512_store_ps(to.points + 16, _mm512_add_ps(high, offset));
}

// What codes of a row (of int8, plus 2^23) stand for.
inline __m512 numbers_of(__m512 codes, const RowParameters& of, int row) {
  return _mm512_mul_ps(_mm512_sub_ps(codes, _mm512_set1_ps(of.points[row])), _mm512_set1_ps(of.scales[row]));
}

// A row of a block. With all of its 64 columns, `even` and `odd` are the rows' numbers of two steps;
// with 32, the lower half of each is part of one.
template <bool kFull>
inline void put_row(__m512i even, __m512i odd, uint16_t* out) {
  if constexpr (kFull) {
    _mm512_store_si512(out, even);
    _mm512_store_si512(out + kStep, odd);
  } else {
    _mm512_store_si512(out, _mm512_inserti64x4(even, _mm512_castsi512_si256(odd), 1));
  }
}

inline void prefetch(const uint8_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }

// ---------------------------------------------------------------- int4

// Tables of what sixteen codes stand for. Of a block in one group: [16] of row r and of row 16 + r, for r in
// 0 .. 15. Of a block in two groups: [32 rows] in its lower 32 columns and in its upper 32.
struct CodeTables {
  alignas(64) uint16_t numbers[kTileRows][2][16];
};

inline __m512 all_codes() {
  return _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Converting two rows at once halves what the busiest port has to do.
inline void make_tables(const RowParameters& group, CodeTables& tables) {
#pragma GCC unroll 8
  for (int row = 0; row < 16; ++row) {
    const __m512 low = numbers_of(all_codes(), group, row), high = numbers_of(all_codes(), group, 16 + row);
    _mm512_store_si512(tables.numbers[row], (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

inline void make_split_tables(const RowParameters& lower, const RowParameters& upper, CodeTables& tables) {
  for (int row = 0; row < kTileRows; ++row) {
    const __m512 first = numbers_of(all_codes(), lower, row), second = numbers_of(all_codes(), upper, row);
    _mm512_store_si512(tables.numbers[row], (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
}

// Row r's table (half 0) or row 16 + r's, for `look`.
template <bool kSplit>
inline __m512i load_table(const CodeTables& tables, int r, int half) {
  if constexpr (kSplit) return _mm512_load_si512(tables.numbers[16 * half + r]);
  return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(tables.numbers[r][half])));
}

// What the low nibble of every word stands for. A table whose halves are equal ignores the index's fifth
// bit; otherwise it must say which half of the columns a word belongs to.
template <bool kSplit>
inline __m512i look(__m512i words, __m512i table) {
  if constexpr (!kSplit) return _mm512_permutexvar_epi16(words, table);
  const __m512i upper = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  // 0xea: (words & 15) | upper
  return _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(words, _mm512_set1_epi16(15), upper, 0xea), table);
}

template <bool kFull, bool kSplit>
inline void decode_int4(const uint8_t* codes, const uint8_t* ahead, const CodeTables& tables, uint16_t* out) {
  constexpr int kLines = kFull ? 16 : 8;
  __m512i lines[16], rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    lines[i] = i < kLines ? _mm512_load_si512(codes + 64 * i) : _mm512_setzero_si512();
  }
  transpose_words16(lines, rows);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const __m512i low = load_table<kSplit>(tables, r, 0), high = load_table<kSplit>(tables, r, 1);
    if (r < kLines) prefetch(ahead + 64 * r);
    put_row<kFull>(look<kSplit>(rows[r], low), look<kSplit>(_mm512_srli_epi16(rows[r], 8), low),
                   out + kStepColumns * r);
    put_row<kFull>(look<kSplit>(_mm512_srli_epi16(rows[r], 4), high),
                   look<kSplit>(_mm512_srli_epi16(rows[r], 12), high), out + kHalfStep + kStepColumns * r);
  }
}

// ---------------------------------------------------------------- int8

// The codes in 32 words as bfloat16: a code under the upper half of 2^23 is 2^23 + code.
inline __m512i numbers_of_words(__m512i words, const RowParameters& lower, const RowParameters& upper, int row) {
  const __m512i exponent = _mm512_set1_epi16(0x4b00);
  const __m512 first = numbers_of(_mm512_castsi512_ps(_mm512_unpacklo_epi16(words, exponent)), lower, row);
  const __m512 second = numbers_of(_mm512_castsi512_ps(_mm512_unpackhi_epi16(words, exponent)), upper, row);
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// The lowest and the second byte of every word as float32 minus the zero point, for rows without scales: a byte
// under the exponent of 2^23 or of 2^15 is that number plus the byte.
inline __m512 first_byte(__m512i words, __m512 point) {  // 0xea: (a & b) | c
  const __m512i code =
      _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(0xff), _mm512_set1_epi32(0x4b000000), 0xea);
  return _mm512_sub_ps(_mm512_castsi512_ps(code), point);
}
inline __m512 second_byte(__m512i words, __m512 point) {
  const __m512i code =
      _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(0xff00), _mm512_set1_epi32(0x47000000), 0xea);
  return _mm512_sub_ps(_mm512_castsi512_ps(code), point);
}

// The upper halves of both, where the lower ones are zero.
inline __m512i pair_of(__m512 first, __m512 second) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16), _mm512_castps_si512(second));
}

// Half of a tile's rows, without their scales.
template <bool kFull>
inline void decode_int8_codes(const uint8_t* codes, const uint8_t* ahead, const RowParameters& group, int half,
                              uint16_t* out) {
  __m512i lines[16], rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    lines[i] = kFull || i < 8 ? _mm512_load_si512(codes + 128 * i) : _mm512_setzero_si512();
  }
  transpose_words16(lines, rows);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const __m512 point = _mm512_set1_ps(group.points[16 * half + r]);
    const __m512 second_point = _mm512_sub_ps(point, _mm512_set1_ps(0x1p23f - 0x1p15f));
    const __m512i upper = _mm512_srli_epi32(rows[r], 16);
    if (kFull || r < 8) prefetch(ahead + 128 * r);
    put_row<kFull>(pair_of(first_byte(rows[r], point), first_byte(upper, point)),
                   pair_of(second_byte(rows[r], second_point), second_byte(upper, second_point)),
                   out + kStepColumns * r);
  }
}

// Half of a tile's rows.
template <bool kFull>
inline void decode_int8_half(const uint8_t* codes, const uint8_t* ahead, const RowParameters& lower,
                             const RowParameters& upper, int half, uint16_t* out) {
  __m512i lines[16], rows[16];
  // Where unpacking puts a quad: numbers of the lower eight come together, and of the upper eight.
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int quad = i / 4 * 2 + i % 2 + (i % 4 < 2 ? 0 : 8);
    lines[i] = kFull || quad < 8 ? _mm512_load_si512(codes + 128 * quad) : _mm512_setzero_si512();
  }
  transpose_words16(lines, rows);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const int row = 16 * half + r;
    if (kFull || r < 8) prefetch(ahead + 128 * r);
    const __m512i even = _mm512_and_si512(rows[r], _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(rows[r], 8);
    put_row<kFull>(numbers_of_words(even, lower, upper, row), numbers_of_words(odd, lower, upper, row),
                   out + kStepColumns * r);
  }
}

// ---------------------------------------------------------------- bfloat16

// Pairs of lines, columns (0, 1) and (2, 3) of each row, as (0, 2) and (1, 3).
template <bool kFull>
inline void decode_bfloat16_half(const uint8_t* lines, const uint8_t* ahead, uint16_t* out) {
  __m512i even[16], odd[16], even_rows[16], odd_rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    even[i] = odd[i] = _mm512_setzero_si512();
    if (!kFull && i >= 8) continue;
    const __m512i first = _mm512_load_si512(lines + 256 * i), second = _mm512_load_si512(lines + 256 * i + 128);
    prefetch(ahead + 256 * i);
    prefetch(ahead + 256 * i + 128);
    even[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
    odd[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
  }
  transpose_words16(even, even_rows);
  transpose_words16(odd, odd_rows);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) put_row<kFull>(even_rows[r], odd_rows[r], out + kStepColumns * r);
}

// ---------------------------------------------------------------- a tile

// Whether sums are scaled instead of weights.
template <WeightKind kKind>
inline bool scales_later(const Weight& weight) {
  return kKind == WeightKind::int8 && weight.group == weight.columns;
}

// Reads a tile from its first column to its last, a block of 64 columns at a time.
template <WeightKind kKind>
class Reader {
 public:
  void open(const Weight& weight, const uint8_t* tile) {
    codes_ = tile;
    zero_points_ = weight.zero_points;
    steps_ = weight.group / kStepColumns;
    scaled_later_ = scales_later<kKind>(weight);
    enter_group(lower_);
  }

  // Of a tile whose numbers are without scales, for each of its rows.
  const float* scales() const { return scaled_later_ ? lower_.scales : nullptr; }

  // `steps` times 32 columns into out [steps][2][16][32]; odd only at the end of the tile.
  void decode(int steps, uint16_t* out) {
    for (; steps >= 2; steps -= 2, out += 2 * kStep) decode_block<true>(out);
    if (steps > 0) decode_block<false>(out);
  }

 private:
  // Parameters of the group that starts at codes_.
  void enter_group(RowParameters& parameters) {
    if constexpr (is_integer(kKind)) {
      scale_line_ = codes_ + steps_ * step_bytes(kKind);
      load_parameters<kKind>(scale_line_, zero_points_, parameters);
      if constexpr (kKind == WeightKind::int4) prefetch(scale_line_ + kPrefetchBytes);
      left_ = steps_;
      fresh_ = true;
    }
  }

  template <bool kFull>
  void decode_block(uint16_t* out) {
    if constexpr (!is_integer(kKind)) {
      const uint8_t* ahead = codes_ + kPrefetchBytes;
      decode_bfloat16_half<kFull>(codes_, ahead, out);
      decode_bfloat16_half<kFull>(codes_ + 64, ahead + 64, out + kHalfStep);
      codes_ += (kFull ? 2 : 1) * step_bytes(kKind);
    } else {
      if (left_ == 0) {
        codes_ = next_group();
        enter_group(lower_);
      }
      if (kFull && left_ == 1) {
        decode_split(out);
      } else {
        decode_whole<kFull>(out);
      }
    }
  }

  const uint8_t* next_group() const { return scale_line_ + scale_bytes(kKind) + (zero_points_ ? 64 : 0); }

  template <bool kFull>
  void decode_whole(uint16_t* out) {
    const uint8_t* ahead = codes_ + kPrefetchBytes;
    if constexpr (kKind == WeightKind::int4) {
      if (fresh_) make_tables(lower_, tables_);
      decode_int4<kFull, false>(codes_, ahead, tables_, out);
    } else if (scaled_later_) {
      decode_int8_codes<kFull>(codes_, ahead, lower_, 0, out);
      decode_int8_codes<kFull>(codes_ + 64, ahead + 64, lower_, 1, out + kHalfStep);
    } else {
      decode_int8_half<kFull>(codes_, ahead, lower_, lower_, 0, out);
      decode_int8_half<kFull>(codes_ + 64, ahead + 64, lower_, lower_, 1, out + kHalfStep);
    }
    fresh_ = false;
    codes_ += (kFull ? 2 : 1) * step_bytes(kKind);
    left_ -= kFull ? 2 : 1;
  }

  // The last 32 columns of a group and the first of the next one: their codes are brought together.
  void decode_split(uint16_t* out) {
    constexpr int kBytes = step_bytes(kKind);
    alignas(64) uint8_t both[2 * kBytes];
    RowParameters upper;
    copy_lines(codes_, both, kBytes);
    codes_ = next_group();
    enter_group(upper);
    copy_lines(codes_, both + kBytes, kBytes);
    const uint8_t* ahead = codes_ + kPrefetchBytes;
    if constexpr (kKind == WeightKind::int4) {
      make_split_tables(lower_, upper, tables_);
      decode_int4<true, true>(both, ahead, tables_, out);
    } else {
      decode_int8_half<true>(both, ahead, lower_, upper, 0, out);
      decode_int8_half<true>(both + 64, ahead + 64, lower_, upper, 1, out + kHalfStep);
    }
    lower_ = upper;
    codes_ += kBytes;
    left_ = steps_ - 1;
  }

  static void copy_lines(const uint8_t* from, uint8_t* to, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm512_store_si512(to + i, _mm512_load_si512(from + i));
  }

  const uint8_t* codes_ = nullptr;  // of the columns to be decoded next
  bool zero_points_ = false;
  int steps_ = 0;         // of a group
  int left_ = 0;          // of the current group
  bool fresh_ = true;     // no tables have been made for it
  bool scaled_later_ = false;
  const uint8_t* scale_line_ = nullptr;
  RowParameters lower_;
  CodeTables tables_;
};

}  // namespace decode_bfloat16_amx
