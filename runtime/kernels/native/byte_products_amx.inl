// Products of bytes on matrix tiles for attention over an int8 cache: up to 16 rows by 16 tokens by 64
// dimensions, and by 16 dimensions by 64 tokens, an instruction.
//
// Included by attention_int8_amx.inl. All sums are exact whole numbers, in whatever order they are taken.

// Tiles 0 .. 3: sums [rows][16]; 4 and 5: limbs [rows][quads][4]; 6 and 7: codes [quads][16][4]. With few
// rows a tile has both limbs of all rows.
constexpr RowTiles byte_tiles_for(uint8_t quads) {
  RowTiles tiles{};
  for (int r = 0; r < kBlockRows; ++r) {
    const uint8_t rows = r + 1;
    const uint16_t limbs = static_cast<uint16_t>(4 * quads);
    tiles.of[r] = {1, 0, {}, {64, 64, 64, 64, limbs, limbs, 64, 64},
                   {rows, rows, rows, rows, rows, rows, quads, quads}};
  }
  return tiles;
}
constexpr RowTiles kByteTiles[] = {byte_tiles_for(4), byte_tiles_for(8), byte_tiles_for(12),
                                   byte_tiles_for(16)};

constexpr int kGroupUnits = 4;
constexpr int kGroupTokens = kGroupUnits * kUnitTokens;
constexpr int kFewRows = kBlockRows / 2;  // both limbs of so many rows fit one tile
// Numbers from row to row: at a power of two all rows would fall into the same cache sets.
constexpr int kGroupStride = kGroupTokens + 16;
constexpr int kLimbStride = kSpanTokens + 64;
struct ByteSpan : Span {
  // Of a block, all rows' first limbs, then all rows' second limbs: with four units, or up to 64 dimensions.
  alignas(64) int32_t sums[2 * kBlockRows * kGroupStride];
  alignas(64) uint8_t limbs[2 * kMostAttendRows * kLimbStride];  // of queries, then of weights, by block
  float factors[kMostAttendRows];    // what a sum times its key's scale is multiplied by to be a score
  int32_t offsets[kMostAttendRows];  // what a sum has too much, since keys are stored plus 128
  float scales[kMostAttendRows];     // of the weights
  Floats maxima[kMostAttendRows];    // of scores, then of weights
  Floats totals[kMostAttendRows];    // sums of weights
  float largest[kMostAttendRows];    // of scores, then of weights
  float total[kMostAttendRows];
  alignas(64) float key_scales[kSpanTokens];  // of tokens that some row sees; 0 for others
  alignas(64) float value_scales[kSpanTokens];
  alignas(64) uint8_t values[kSpanTokens / kGroupTokens][2 * kGroupTokens * 16];  // of groups, 32 dimensions
};

// First limbs of the block that starts with `row`, and how far behind them its second ones are.
inline uint8_t* block_limbs(ByteSpan& s, int row) { return s.limbs + 2 * row * kLimbStride; }
inline int64_t second_limbs(const ByteSpan& s) { return static_cast<int64_t>(block_rows(s)) * kLimbStride; }

// The limbs of a row.
inline uint8_t* row_limbs(ByteSpan& s, int row) {
  return block_limbs(s, row / kBlockRows * kBlockRows) + row % kBlockRows * kLimbStride;
}

// ---------------------------------------------------------------- queries times keys

inline bool few(const Span& s) { return s.call->rows <= kFewRows; }

void configure(const Span& s, int step) {
  const int rows = few(s) ? 2 * s.call->rows : block_rows(s);
  _tile_loadconfig(&kByteTiles[step / 16 - 1].of[rows - 1]);
}

// Keys of a group's units (outside of the span those of the nearest), and what is needed later.
struct GroupKeys {
  const uint8_t* of[kGroupUnits];
  const uint8_t* ahead[kGroupUnits];
};

GroupKeys open_keys(const ByteSpan& s, int first) {
  const KvLayout& kv = s.call->layout;
  GroupKeys keys;
  for (int u = 0; u < kGroupUnits; ++u) {
    const int unit = most(first + u, s.first_unit);
    keys.of[u] = s.units[least(unit, s.last_unit)];
    keys.ahead[u] = s.key_ahead[unit + (few(s) ? 1 : 2) * kAheadUnits];
    const uint8_t* scales = s.units[least(unit + kAheadUnits, s.last_unit)];
    prefetch(scales + kv.key_scales);
    prefetch(scales + kv.value_scales);
  }
  return keys;
}

// Sums of all rows and a group's keys, `step` dimensions at a time. Memory is asked for in front of each tile: a
// burst of four units' lines behind them would wait for lines that are under way.
void score_few(ByteSpan& s, const GroupKeys& keys, int step) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < s.call->layout.padded_dim; d += step) {
    const int at = d * kUnitTokens;
    _tile_loadd(4, s.limbs + d, kLimbStride);
    prefetch_lines(keys.ahead[0] + at, step / 4);
    _tile_loadd(6, keys.of[0] + at, 64);
    _tile_dpbsud(0, 4, 6);
    prefetch_lines(keys.ahead[1] + at, step / 4);
    _tile_loadd(7, keys.of[1] + at, 64);
    _tile_dpbsud(1, 4, 7);
    prefetch_lines(keys.ahead[2] + at, step / 4);
    _tile_loadd(6, keys.of[2] + at, 64);
    _tile_dpbsud(2, 4, 6);
    prefetch_lines(keys.ahead[3] + at, step / 4);
    _tile_loadd(7, keys.of[3] + at, 64);
    _tile_dpbsud(3, 4, 7);
  }
  _tile_stored(0, s.sums, kGroupStride * 4);
  _tile_stored(1, s.sums + 16, kGroupStride * 4);
  _tile_stored(2, s.sums + 32, kGroupStride * 4);
  _tile_stored(3, s.sums + 48, kGroupStride * 4);
}

// The same of a block's rows, `row` and following, for two units, `pair` and the next.
void score_pair(ByteSpan& s, const GroupKeys& keys, int row, int pair, int step) {
  const uint8_t* firsts = block_limbs(s, row);
  const uint8_t* seconds = firsts + second_limbs(s);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < s.call->layout.padded_dim; d += step) {
    const int at = d * kUnitTokens;
    _tile_loadd(4, firsts + d, kLimbStride);
    _tile_loadd(6, keys.of[pair] + at, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(5, seconds + d, kLimbStride);
    _tile_dpbsud(1, 5, 6);
    _tile_loadd(7, keys.of[pair + 1] + at, 64);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 5, 7);
    if (row > 0) continue;
    for (int u = 0; u < 2; ++u) prefetch_lines(keys.ahead[pair + u] + at, step / 4);
  }
  int32_t* sums = s.sums + pair * kUnitTokens;
  int32_t* second_sums = sums + block_rows(s) * kGroupStride;
  _tile_stored(0, sums, kGroupStride * 4);
  _tile_stored(1, second_sums, kGroupStride * 4);
  _tile_stored(2, sums + 16, kGroupStride * 4);
  _tile_stored(3, second_sums + 16, kGroupStride * 4);
}

void score_group(ByteSpan& s, const GroupKeys& keys, int row, int step) {
  if (few(s)) return score_few(s, keys, step);
  score_pair(s, keys, row, 0, step);
  score_pair(s, keys, row, 2, step);
}

// Sixteen numbers of a row of the block: of whose first limbs these are the sums.
inline __m512i join_limbs(const ByteSpan& s, const int32_t* sums) {
  const __m512i high = _mm512_slli_epi32(_mm512_load_si512(sums), 7);
  return _mm512_add_epi32(high, _mm512_load_si512(sums + block_rows(s) * kGroupStride));
}

// ---------------------------------------------------------------- weights times values

// Values of a group's units, dimensions d .. d + 16 kBlocks - 1: [kBlocks][quads of tokens][16][4]. Those of
// units outside of the span stay what they were: their weights are zero.
template <int kBlocks>
void copy_group(ByteSpan& s, int first, int d) {
  const int64_t quad = 4 * s.call->layout.padded_dim;
  const int offset = s.call->layout.values + 4 * d;
  const int end = least(first + kGroupUnits, s.last_unit + 1);
  for (int unit = most(first, s.first_unit); unit < end; ++unit) {
    const uint8_t* values = s.units[unit] + offset;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
    uint8_t* to = s.values[first / kGroupUnits] + (unit - first) * kUnitTokens * 16;
    for (int i = 0; i < kUnitTokens / 4; ++i)
      for (int c = 0; c < kBlocks; ++c) {
        const __m512i codes = _mm512_loadu_si512(values + i * quad + 64 * c);
        _mm512_store_si512(to + c * kGroupTokens * 16 + i * 64, codes);
        prefetch(ahead + i * quad + 64 * c);
      }
  }
}

template <int kBlocks>
void copy_groups(ByteSpan& s, int d) {
  const int start = s.first_unit / kGroupUnits * kGroupUnits;
  for (int first = start; first <= s.last_unit; first += kGroupUnits) copy_group<kBlocks>(s, first, d);
}

// Sums of a span's weights, of a block's rows, times the copied values of 16 kBlocks dimensions.
template <int kBlocks>
void add_groups(ByteSpan& s, int row) {
  const uint8_t* firsts = block_limbs(s, row);
  const uint8_t* seconds = firsts + second_limbs(s);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks > 1) _tile_zero(2);
  if constexpr (kBlocks > 1) _tile_zero(3);
  for (int group = s.first_unit / kGroupUnits; group <= s.last_unit / kGroupUnits; ++group) {
    const uint8_t* values = s.values[group];
    _tile_loadd(4, firsts + group * kGroupTokens, kLimbStride);
    _tile_loadd(6, values, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(5, seconds + group * kGroupTokens, kLimbStride);
    _tile_dpbusd(1, 5, 6);
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, values + kGroupTokens * 16, 64);
      _tile_dpbusd(2, 4, 7);
      _tile_dpbusd(3, 5, 7);
    }
  }
  int32_t* second_sums = s.sums + block_rows(s) * kGroupStride;
  _tile_stored(0, s.sums, kGroupStride * 4);
  _tile_stored(1, second_sums, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(2, s.sums + 16, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(3, second_sums + 16, kGroupStride * 4);
}

// The same with few rows, of values where they are: that costs less than copying.
template <int kBlocks>
void add_units(ByteSpan& s, int d) {
  const int64_t quad = 4 * s.call->layout.padded_dim;
  const int offset = s.call->layout.values + 4 * d;
  _tile_zero(0);
  if constexpr (kBlocks > 1) _tile_zero(1);
  if constexpr (kBlocks > 2) _tile_zero(2);
  if constexpr (kBlocks > 3) _tile_zero(3);
  for (int unit = s.first_unit; unit <= s.last_unit; ++unit) {
    const uint8_t* values = s.units[unit] + offset;
    const uint8_t* ahead = s.value_ahead[unit + kAheadUnits] + 4 * d;
    for (int i = 0; i < kUnitTokens / 4; ++i) prefetch_lines(ahead + i * quad, kBlocks);
    _tile_loadd(4, s.limbs + unit * kUnitTokens, kLimbStride);
    _tile_loadd(6, values, quad);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, values + 64, quad);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (kBlocks > 2) {
      _tile_loadd(6, values + 128, quad);
      _tile_dpbusd(2, 4, 6);
    }
    if constexpr (kBlocks > 3) {
      _tile_loadd(7, values + 192, quad);
      _tile_dpbusd(3, 4, 7);
    }
  }
  _tile_stored(0, s.sums, kGroupStride * 4);
  if constexpr (kBlocks > 1) _tile_stored(1, s.sums + 16, kGroupStride * 4);
  if constexpr (kBlocks > 2) _tile_stored(2, s.sums + 32, kGroupStride * 4);
  if constexpr (kBlocks > 3) _tile_stored(3, s.sums + 48, kGroupStride * 4);
}
