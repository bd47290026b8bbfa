// Linear layers in plain loops: what the other instruction sets are tested against.
//
// Included inside an anonymous namespace.
namespace linear_scalar {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
T entry(const void* p, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(p) + index * static_cast<int64_t>(sizeof(T)), sizeof value);
  return value;
}

inline float widen_bf16(uint16_t half) { return float_of_bits(static_cast<uint32_t>(half) << 16); }

inline float widen_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude << 13));
  // Subnormal halves count units of 2^-24; the exponents of the others are 112 larger as floats.
  const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f
                                        : float_of_bits((magnitude << 13) + (112u << 23));
  return sign ? -value : value;
}

// Where the parts of one weight group stand in its tile.
struct Group {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
};

inline Group group_at(const Weight& weight, int tile, int index) {
  const int code_bytes = weight.group * (weight.kind == WeightKind::int4 ? 16 : 32);
  const int scale_bytes = weight.kind == WeightKind::int4 ? 64 : 128;
  const int bytes = code_bytes + scale_bytes + (weight.zero_points ? 64 : 0);
  const uint8_t* codes = weight.data + tile * weight.tile_bytes + static_cast<int64_t>(index) * bytes;
  return {codes, codes + code_bytes, codes + code_bytes + scale_bytes};
}

// The code of a row of the tile at a column of the group, minus its zero point.
inline int centred_code(const Weight& weight, const Group& group, int row, int column) {
  const int r = row % 16;
  const int byte = 4 * r + column % 4;
  int code;
  if (weight.kind == WeightKind::int4) {
    const int pair = group.codes[64 * (column / 4) + byte];
    code = row < 16 ? pair & 15 : pair >> 4;
  } else {
    code = group.codes[64 * (2 * (column / 4) + row / 16) + byte];
  }
  if (weight.zero_points) return code - entry<int16_t>(group.zeros, 2 * r + row / 16);
  return code - (weight.kind == WeightKind::int4 ? 8 : 128);
}

inline float group_scale(const Weight& weight, const Group& group, int row) {
  if (weight.kind == WeightKind::int4) return widen_f16(entry<uint16_t>(group.scales, row));
  return entry<float>(group.scales, row);
}

inline float float_weight(const Weight& weight, int tile, int row, int column) {
  const uint8_t* data = weight.data + tile * weight.tile_bytes;
  if (weight.kind == WeightKind::float32) return entry<float>(data, 32 * column + row);
  const int line = 2 * (column / 2) + row / 16;
  return widen_bf16(entry<uint16_t>(data, 32 * line + 2 * (row % 16) + column % 2));
}

// One token of a panel.
struct Token {
  const Activations& x;
  int panel;
  int width;
  int index;
};

inline int64_t value_index(const Token& token, int column, int adjacent) {
  const int64_t base = static_cast<int64_t>(token.panel) * token.x.panel * token.x.columns;
  const int64_t block = static_cast<int64_t>(column / adjacent) * token.width + token.index;
  return base + block * adjacent + column % adjacent;
}

inline int int8_value(const Token& token, int column) {
  const int adjacent = token.width == 16 ? token.x.columns : 4;
  return entry<int8_t>(token.x.values, value_index(token, column, adjacent));
}

inline float float_value(const Token& token, int column) {
  if (token.x.form == ActivationForm::float32)
    return entry<float>(token.x.values, value_index(token, column, 1));
  return widen_bf16(entry<uint16_t>(token.x.values, value_index(token, column, 2)));
}

inline float activation_scale(const Token& token, int group) {
  const int64_t groups = token.x.columns / kActivationGroup;
  const int64_t base = token.panel * token.x.panel * groups;
  return token.x.scales[base + static_cast<int64_t>(group) * token.width + token.index];
}

inline float int8_dot(const Weight& weight, int tile, int row, const Token& token) {
  float out = 0.0f;
  for (int begin = 0; begin < weight.columns; begin += kActivationGroup) {
    const Group group = group_at(weight, tile, begin / weight.group);
    int32_t sum = 0;
    for (int column = begin; column < begin + kActivationGroup; ++column)
      sum += centred_code(weight, group, row, column % weight.group) * int8_value(token, column);
    const float scaled = static_cast<float>(sum) * activation_scale(token, begin / kActivationGroup);
    out = __builtin_fmaf(scaled, group_scale(weight, group, row), out);
  }
  return out;
}

inline float grouped_dot(const Weight& weight, int tile, int row, const Token& token) {
  float out = 0.0f;
  for (int begin = 0; begin < weight.columns; begin += weight.group) {
    const Group group = group_at(weight, tile, begin / weight.group);
    float sum = 0.0f;
    for (int column = 0; column < weight.group; ++column) {
      const float code = static_cast<float>(centred_code(weight, group, row, column));
      sum = __builtin_fmaf(code, float_value(token, begin + column), sum);
    }
    out = __builtin_fmaf(sum, group_scale(weight, group, row), out);
  }
  return out;
}

inline float float_dot(const Weight& weight, int tile, int row, const Token& token) {
  if (weight.group != 0) return grouped_dot(weight, tile, row, token);
  float out = 0.0f;
  for (int column = 0; column < weight.columns; ++column)
    out = __builtin_fmaf(float_weight(weight, tile, row, column), float_value(token, column), out);
  return out;
}

using Dot = float (*)(const Weight&, int, int, const Token&);

template <Dot kDot>
void linear(const Weight& weight, int tile, const Activations& x, int first, int count, float* out) {
  for (int panel = first; panel < first + count; ++panel) {
    const int width = panel + 1 == x.panels ? x.last : x.panel;
    for (int t = 0; t < width; ++t, out += kTileRows)
      for (int row = 0; row < kTileRows; ++row) out[row] = kDot(weight, tile, row, Token{x, panel, width, t});
  }
}

}  // namespace linear_scalar

void set_linear_scalar_kernels(KernelTable& table) {
  table.linear_int8 = linear_scalar::linear<linear_scalar::int8_dot>;
  table.linear_float = linear_scalar::linear<linear_scalar::float_dot>;
}
