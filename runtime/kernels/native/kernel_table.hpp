// The contract between the step and the kernels of one instruction set.
//
// Every instruction set fills one KernelTable. A kernel computes each token (and each attention
// row) by the same operations in the same order whatever stands beside it in the batch, so that a
// sequence's result depends on nothing but itself. Between instruction sets results agree within
// a tolerance.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gristmill {

constexpr int kTileRows = 32;        // output rows of a weight tile
constexpr int kActivationGroup = 32; // input columns that share an activation scale
constexpr int kMostPanelTokens = 16; // tokens of the widest activation panel
constexpr int kUnitTokens = 16;      // tokens of one cache unit
constexpr int kSpanTokens = 256;     // positions, aligned, whose softmax is computed in one go
constexpr int kMostHeadDim = 256;
constexpr int kMostAttendRows = 64;  // query rows that share one pass over keys and values
constexpr int kMostLinearTiles = 4;  // weight tiles of one call on matrix tiles
constexpr int kMostTileTokens = 512; // tokens of one call on matrix tiles
constexpr int64_t kDecodedBytes = 512 << 10;
constexpr int64_t kLinearScratchBytes = kDecodedBytes + kMostLinearTiles * kMostTileTokens * kTileRows * 4;

// ---------------------------------------------------------------- linears

enum class WeightKind : int32_t { int4 = 0, int8 = 1, bfloat16 = 2, float32 = 3 };

// How a linear's input is held: int8 panels (with int4 and int8 weights only), or numbers.
enum class ActivationForm : int32_t { int8 = 0, bfloat16 = 1, float32 = 2 };

// One linear in kernel layout (bytes: layout.py and runtime/kernels/README.md). Rows are padded to
// whole tiles, columns to whole activation groups; padding holds zero weights.
struct Weight {
  WeightKind kind;
  int32_t rows;        // a multiple of kTileRows
  int32_t columns;     // a multiple of kActivationGroup
  int32_t group;       // columns that share a scale, a multiple of kActivationGroup; 0 for floats
  bool zero_points;    // without, the zero point is 8 (int4) or 128 (int8)
  const uint8_t* data;
  int64_t tile_bytes;
};

// A linear's input: tokens in panels. All panels but the last are `panel` tokens wide; the last is
// `last` wide (1, 2, 4, 8 or 16; padded with zero tokens). Token t of panel p is token
// p * panel + t. In a panel of width w:
//   int8       values int8 [columns / 4][w][4], or int8 [w][columns] if w == 16 (matrix tiles)
//              scales float [columns / 32][w], sums int32 [columns / 32][w] (of the group's values)
//   bfloat16   values uint16 [columns / 2][w][2]; with matrix tiles (`linear_tiles`) the columns of each 64,
//              and of the 32 that may remain, stand in the order 0, 2, 4, .., 1, 3, 5, ..
//   float32    values float [columns][w]
// Panel p starts at p * panel * columns values and at p * panel * columns / 32 scales and sums.
struct Activations {
  ActivationForm form;
  int32_t tokens;
  int32_t columns;
  int32_t panel;
  int32_t last;
  int32_t panels;
  void* values;
  float* scales;
  int32_t* sums;
};

enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2 };

// Where a tile's rows go in the output: `count` of them, from column `column`.
struct TileOutput {
  int32_t column;
  int32_t count;
};

enum class Finish : int32_t {
  write = 0,        // y[token][outputs[tile].column ..] = sums (+ bias)
  add = 1,          // the same += sums (+ bias)
  gate = 2,         // y[token][16 * tile ..] = activation(sums of 16 gate rows) * sums of the 16 up rows (bias to both)
  gate_panels = 3,  // the same into bfloat16 panels as wide as the input's, where there are matrix tiles
};

// What becomes of a linear's sums.
struct Sink {
  Finish finish;
  const float* bias;          // in padded row order, or null
  const TileOutput* outputs;  // one a tile; none of gates
  Activation activation;      // of gates, as what follows
  int32_t channels;           // gated in all: of the last tile fewer than 16 may count
  float* y;                   // row of the first token; rows are `stride` apart
  int64_t stride;
  Activations panels;         // gate_panels only: columns from `channels` on become zero
};

// ---------------------------------------------------------------- attention

enum class KvType : int32_t { float32 = 0, bfloat16 = 1, float16 = 2, fp8 = 3, int8 = 4, int4 = 5 };

// One cache unit: keys and values of kUnitTokens tokens and one kv head, contiguous. With
// D = head_dim padded to a multiple of 16:
//   keys    float32, float16, fp8: [D][16]   bfloat16: [D / 2][16][2]
//           int8: uint8 [D / 4][16][4], value = byte - 128
//           int4: int8 [D][16]: four bits would cost far more in keys, whose errors e^x magnifies
//   key scales (int8, int4): float [16]
//   values  float32, float16: [16][D]   bfloat16: [8][D][2] (token pairs)
//           fp8: [8][D / 16][2][16] (token pairs)   int8: [4][D][4] (four tokens)
//           int4: uint8 [8][D], low nibble the even token, value = nibble - 8
//   value scales (int8, int4): float [16]
struct KvLayout {
  KvType type;
  int32_t head_dim;
  int32_t padded_dim;
  int32_t key_scales;    // byte offsets inside a unit
  int32_t values;
  int32_t value_scales;
  int32_t unit_bytes;    // a multiple of 64
  float key_scale;       // fp8 only: stored = key / key_scale
  float value_scale;
};

// What is known of one row's attention after some spans: softmax maximum, sum, and the weighted
// values [padded_dim], not yet divided. Starts as {-inf, 0, zeros}.
struct AttendState {
  float maximum;
  float sum;
  float* weighted;
};

// Rows (query head x token) of one sequence that read the same kv head. `units[u]` is the unit that
// holds positions u * 16 .. u * 16 + 15.
struct AttendRows {
  KvLayout layout;
  const uint8_t* const* units;
  int32_t rows;                 // 1 .. kMostAttendRows
  const float* const* queries;  // [rows] -> [head_dim], rotated
  const int32_t* positions;     // [rows]; a row sees positions p - window + 1 .. p
  int32_t window;               // 0: no sliding window
  float scale;                  // multiplies q k
  float softcap;                // 0: none
};

// ---------------------------------------------------------------- the table

struct KernelTable {
  const char* name;     // as GRISTMILL_ISA names it
  int32_t panel;        // widest panel: 8, or 16 with matrix tiles
  int32_t attend_rows;  // rows of a pass over keys and values that these kernels take best

  // `columns` (padded) columns of `x[0..tokens)` (row stride `stride` floats) into one panel of width
  // `width`, missing tokens zero. The caller keeps padding columns of x zero. int8 rounds to nearest even, scale = max|x| / 127, a zero group gets scale 0.
  void (*fill_panel)(ActivationForm form, const float* x, int64_t stride, int tokens, int width,
                     int columns, void* values, float* scales, int32_t* sums);

  // out[token - first_token][32] of tile `tile`, for the tokens of panels first .. first + count - 1,
  // padding tokens included. out is 64-byte aligned. Integer weights times int8 activations: for
  // each activation group in turn, exact int32 sum of (code - zero point) * value, then
  // out = fma(float(sum) * activation scale, weight scale, out).
  void (*linear_int8)(const Weight& weight, int tile, const Activations& x, int first, int count, float* out);
  // The same for bfloat16 and float32 activations, with weights of any kind. Integer weights: the
  // sum over one weight group, then out = fma(sum, weight scale, out).
  void (*linear_float)(const Weight& weight, int tile, const Activations& x, int first, int count, float* out);
  // Instead of it for bfloat16 activations and weights of any kind but float32, where there are matrix tiles;
  // null elsewhere. `tiles` tiles from `tile` on (at most kMostLinearTiles) of at most kMostTileTokens tokens,
  // given to the sink; padding tokens get no rows. A weight is (code - zero point) * scale, rounded to float32
  // and then to bfloat16, and all columns are added without further rounding to bfloat16; rows of int8 with
  // one scale are added unscaled. `scratch` is the kernel's own meanwhile: kLinearScratchBytes.
  void (*linear_tiles)(const Weight& weight, int tile, int tiles, const Activations& x, int first, int count,
                       void* scratch, const Sink& sink);

  // y[t][0..n) = a[t][0..n) (+ bias) or y += a (+ bias); a has row stride 32, n <= 32.
  void (*store_tile)(const float* a, int tokens, int n, const float* bias, bool add, float* y,
                     int64_t stride);
  // y[t][0..n) = activation(a[t][0..16)) * a[t][16..32), n <= 16: a tile of interleaved gate and up
  // rows; `bias` has the tile's 32 entries or is null.
  void (*gate_tile)(Activation kind, const float* a, int tokens, int n, const float* bias, float* y,
                    int64_t stride);

  // out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);

  // Half-split rotary embedding of one head in place; cos and sin have rotary_dim / 2 entries.
  void (*rotate)(float* head, const float* cos, const float* sin, int rotary_dim);

  // x[0..n) times the orthonormal Hadamard matrix (Sylvester's), in place and in a fixed order; if n is no
  // power of two, in blocks of the largest one that divides it. The same bits in all instruction sets.
  void (*hadamard)(float* x, int n);

  // Write keys and values [head_dim] of consecutive tokens, `stride` floats apart, into slots slot ..
  // slot + tokens - 1 of a unit; padded dimensions are zero.
  void (*append)(const KvLayout& layout, uint8_t* unit, int slot, int tokens, const float* keys, const float* values,
                 int64_t stride);

  // Attention of every row over positions span * 256 .. + 255 (those that it sees): fresh states,
  // one a row. A row that sees nothing of the span gets {-inf, 0, zeros}.
  void (*attend_span)(const AttendRows& rows, int span, AttendState* states);
  // into = into (+) from, both over dim entries.
  void (*merge_state)(AttendState& into, const AttendState& from, int padded_dim);
  // out[0..head_dim) = weighted * (1 / sum).
  void (*finish_state)(const AttendState& state, int head_dim, float* out);

  // A weight's row as float [columns]: embedding look-up of float tables.
  void (*widen)(WeightKind kind, const void* row, int n, float* out);

  // Runs independent multiply-adds on registers for `rounds` rounds and says how many they were: the
  // most that this instruction set can do with inputs of that form.
  int64_t (*multiply_adds)(ActivationForm form, int64_t rounds);

  // Index of the largest value, the first of equals; -1 if any value is not finite.
  int64_t (*argmax)(const float* x, int64_t n);
};

// Null where the running machine lacks the instructions.
const KernelTable* scalar_table();
const KernelTable* avx2_table();
const KernelTable* avx2_vnni_table();
const KernelTable* avx512_vnni_table();
const KernelTable* avx512_bf16_table();
const KernelTable* amx_table();

}  // namespace gristmill
