// What becomes of sums on matrix tiles: rows of the output, or gated channels.
//
// A tile's sums for one panel are [half][16 rows][width]. As rows of tokens they are turned over. Gated
// channels need not be, where they become a panel: it holds tokens beside each other as well, and sixteen
// channels fill whole words of it. All is done in small pieces: between the products of the next tile they
// cost next to nothing, behind them as much as half of the products.
namespace finish_bfloat16_amx {

struct PanelSums {
  const float* sums;
  const float* scales;  // of the tile's rows, or null
  int tile;
  int width;
  int panel;
  int token;   // the panel's first
  int tokens;  // from it on to the last, maybe more than the panel holds
};

constexpr int kHalfRows = kTileRows / 2;
constexpr int kGateNumbers = kHalfRows * kMostPanelTokens;

// kWidth tokens of sixteen rows, [16][kWidth], as [kWidth][16], each `apart` from the next.
template <int kWidth>
inline void turn_over(const __m512* in, __m512* out, int apart) {
  if constexpr (kWidth == 1) {
    out[0] = in[0];
  } else {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 evens[kWidth / 2], odds[kWidth / 2];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      evens[i] = _mm512_permutex2var_ps(in[2 * i], even, in[2 * i + 1]);
      odds[i] = _mm512_permutex2var_ps(in[2 * i], odd, in[2 * i + 1]);
    }
    turn_over<kWidth / 2>(evens, out, 2 * apart);
    turn_over<kWidth / 2>(odds, out + apart, 2 * apart);
  }
}

// Where sixteen rows of a tile go: `n` of them count.
struct RowPlace {
  const float* scales;  // or null
  const float* bias;    // or null
  bool add;
  int n;
  float* y;
  int64_t stride;
};

// Sixteen rows of the first `tokens` tokens of a panel.
template <int kWidth>
inline void put_half(const float* sums, int tokens, const RowPlace& to) {
  const __mmask16 mask = lanes_below(to.n);
  __m512 lines[kWidth], rows[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) lines[i] = _mm512_load_ps(sums + 16 * i);
  turn_over<kWidth>(lines, rows, 1);
  if (to.scales != nullptr) {
    const __m512 scale = _mm512_load_ps(to.scales);
#pragma GCC unroll 16
    for (int t = 0; t < kWidth; ++t) rows[t] = _mm512_mul_ps(rows[t], scale);
  }
  if (to.bias != nullptr) {
    const __m512 offset = _mm512_maskz_loadu_ps(mask, to.bias);
#pragma GCC unroll 16
    for (int t = 0; t < kWidth; ++t) rows[t] = _mm512_add_ps(rows[t], offset);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kWidth; ++t) {
    if (t >= tokens) break;
    float* out = to.y + t * to.stride;
    if (to.add) rows[t] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), rows[t]);
    _mm512_mask_storeu_ps(out, mask, rows[t]);
  }
}

RowPlace place_of(const Sink& sink, const PanelSums& of, int half) {
  const TileOutput& output = sink.outputs[of.tile];
  const int row = kHalfRows * half;
  return {of.scales == nullptr ? nullptr : of.scales + row,
          sink.bias == nullptr ? nullptr : sink.bias + of.tile * kTileRows + row,
          sink.finish == Finish::add,
          output.count - row,
          sink.y + of.token * sink.stride + output.column + row,
          sink.stride};
}

// A piece is half of a tile's rows.
template <int kWidth>
void finish_rows(const Sink& sink, const PanelSums& of, int half, float*) {
  const int row = kHalfRows * half;
  if (row >= sink.outputs[of.tile].count) return;
  put_half<kWidth>(of.sums + row * kWidth, of.tokens, place_of(sink, of, half));
}

// Sums of sixteen rows, scaled and with their bias, sixteen numbers at a time.
class HalfSums {
 public:
  HalfSums(const Sink& sink, const PanelSums& of, int half)
      : sums_(of.sums + kHalfRows * half * of.width), shift_(__builtin_ctz(of.width)) {
    scaled_ = of.scales != nullptr;
    biased_ = sink.bias != nullptr;
    if (scaled_) scales_ = _mm512_loadu_ps(of.scales + kHalfRows * half);
    if (biased_) bias_ = _mm512_loadu_ps(sink.bias + of.tile * kTileRows + kHalfRows * half);
  }

  Floats at(int i) const {
    Floats sums = load(sums_ + 16 * i);
    if (scaled_) sums = mul(sums, by_row(scales_, i));
    if (biased_) sums = add(sums, by_row(bias_, i));
    return sums;
  }

 private:
  Floats by_row(__m512 numbers, int i) const {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 * i));
    return {_mm512_permutexvar_ps(_mm512_srl_epi32(at, _mm_cvtsi32_si128(shift_)), numbers)};
  }

  const float* sums_;
  int shift_;
  bool scaled_, biased_;
  __m512 scales_{}, bias_{};
};

// activation(gate) * up of sixteen channels, [16][width]: numbers 16 * first .. 16 * end.
template <Activation kKind>
inline void gate_channels(const Sink& sink, const PanelSums& of, int first, int end, float* gated) {
  const HalfSums gate(sink, of, 0), up(sink, of, 1);
  for (int i = first; i < end; ++i) store(gated + 16 * i, mul(activate<kKind>(gate.at(i)), up.at(i)));
}

// Sixteen channels, [16][width], as columns `column` .. of a panel.
inline void put_columns(const float* gated, int width, int column, const Activations& panels, int panel) {
  const __m512i interleaved =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                       18, 2, 17, 1, 16, 0);
  const __mmask16 mask = lanes_below(width);
  const int block = column / 64 * 64, odd_words = panels.columns - block < 64 ? 8 : 16;
  const int64_t start = static_cast<int64_t>(panel) * panels.panel * panels.columns;
  uint16_t* values = static_cast<uint16_t*>(panels.values) + start;
  for (int odd = 0; odd < 2; ++odd) {
    uint16_t* words = values + (block + 2 * odd * odd_words + (column - block) / 2) * width;
    for (int i = 0; i < 4; ++i, words += 2 * width) {
      const float* pair = gated + (4 * i + odd) * width;
      const __m512 low = _mm512_maskz_loadu_ps(mask, pair);
      const __m512 high = _mm512_maskz_loadu_ps(mask, pair + 2 * width);
      const __m512i numbers = (__m512i)_mm512_cvtne2ps_pbh(high, low);
      _mm512_mask_storeu_epi32(words, mask, _mm512_permutexvar_epi16(interleaved, numbers));
    }
  }
}

RowPlace gate_place(const Sink& sink, const PanelSums& of) {
  const int column = of.tile * kHalfRows;
  return {nullptr, nullptr, false, sink.channels - column, sink.y + of.token * sink.stride + column, sink.stride};
}

// Columns beyond the channels, up to the end of the panel, have no tile of their own.
inline void put_gated_columns(const Sink& sink, const PanelSums& of, const float* gated) {
  const int column = of.tile * kHalfRows, next = column + kHalfRows;
  put_columns(gated, of.width, column, sink.panels, of.panel);
  if (next < sink.channels || next == sink.panels.columns) return;
  const float zeros[kGateNumbers] = {};
  put_columns(zeros, of.width, next, sink.panels, of.panel);
}

template <Activation kKind, int kWidth>
void finish_gate(const Sink& sink, const PanelSums& of, int, float* gated) {
  gate_channels<kKind>(sink, of, 0, kWidth, gated);
  if (sink.finish == Finish::gate_panels) {
    put_gated_columns(sink, of, gated);
  } else {
    put_half<kWidth>(gated, of.tokens, gate_place(sink, of));
  }
}

constexpr int kGatePieces = 8;  // and one that puts what they made

template <Activation kKind>
void finish_gate_piece(const Sink& sink, const PanelSums& of, int piece, float* gated) {
  constexpr int kEach = kMostPanelTokens / kGatePieces;
  if (piece < kGatePieces) {
    gate_channels<kKind>(sink, of, piece * kEach, (piece + 1) * kEach, gated);
  } else if (sink.finish == Finish::gate_panels) {
    put_gated_columns(sink, of, gated);
  } else {
    put_half<kMostPanelTokens>(gated, of.tokens, gate_place(sink, of));
  }
}

// How a panel's sums are finished: `gated` is memory for kGateNumbers from piece to piece.
struct Pieces {
  void (*run)(const Sink& sink, const PanelSums& of, int piece, float* gated);
  int count;
};

template <Activation kKind>
Pieces gate_pieces(int width) {
  switch (width) {
    case 1: return {finish_gate<kKind, 1>, 1};
    case 2: return {finish_gate<kKind, 2>, 1};
    case 4: return {finish_gate<kKind, 4>, 1};
    case 8: return {finish_gate<kKind, 8>, 1};
    default: return {finish_gate_piece<kKind>, kGatePieces + 1};
  }
}

Pieces row_pieces(int width) {
  switch (width) {
    case 1: return {finish_rows<1>, 2};
    case 2: return {finish_rows<2>, 2};
    case 4: return {finish_rows<4>, 2};
    case 8: return {finish_rows<8>, 2};
    default: return {finish_rows<16>, 2};
  }
}

Pieces pieces_of(const Sink& sink, int width) {
  if (sink.finish == Finish::write || sink.finish == Finish::add) return row_pieces(width);
  switch (sink.activation) {
    case Activation::silu: return gate_pieces<Activation::silu>(width);
    case Activation::gelu: return gate_pieces<Activation::gelu>(width);
    default: return gate_pieces<Activation::gelu_tanh>(width);
  }
}

// Sums of up to two panels on their way to the sink.
class Pending {
 public:
  explicit Pending(const Sink& sink) : sink_(sink) {}

  // Only when nothing is left of what was put before.
  void put(const PanelSums& sums) {
    const Pieces pieces = pieces_of(sink_, sums.width);
    if (left_ == 0) panels_ = panel_ = piece_ = 0;
    sums_[panels_] = sums;
    pieces_[panels_++] = pieces;
    left_ += pieces.count;
  }

  int left() const { return left_; }

  void advance() {
    if (left_ == 0) return;
    if (piece_ == pieces_[panel_].count) ++panel_, piece_ = 0;
    pieces_[panel_].run(sink_, sums_[panel_], piece_++, gated_);
    --left_;
  }

  void finish() {
    while (left_ > 0) advance();
  }

 private:
  alignas(64) float gated_[kGateNumbers];
  const Sink& sink_;
  PanelSums sums_[2];
  Pieces pieces_[2];
  int panels_ = 0, panel_ = 0, piece_ = 0, left_ = 0;
};

}  // namespace finish_bfloat16_amx
