// The oracle's attention and cache writes: plain loops over single numbers.
//
// Included by kernels_scalar.cpp inside an anonymous namespace, after elementwise_scalar.inl.

// ---------------------------------------------------------------- small floats

// A float with `mantissa` bits, whose smallest normal number is 2^lowest; `most` is its largest code.
struct SmallFloat {
  int mantissa;
  int lowest;
  int sign_bit;
  uint32_t most;
  uint32_t nan;
};
constexpr SmallFloat kFloat16 = {10, -14, 15, 0x7c00, 0x7e00};  // too large numbers become infinite
constexpr SmallFloat kFloat8 = {3, -6, 7, 0x7e, 0x7f};          // E4M3: they become 448

uint32_t encode_small(const SmallFloat& format, float x) {
  const uint32_t sign = std::signbit(x) ? 1u << format.sign_bit : 0u;
  if (std::isnan(x)) return sign | format.nan;
  if (std::isinf(x)) return sign | format.most;
  if (x == 0.0f) return sign;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| < 2^exponent
  const int power = exponent - 1 > format.lowest ? exponent - 1 : format.lowest;
  const double steps = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(x)), format.mantissa - power));
  const double code = std::ldexp(power - format.lowest, format.mantissa) + steps;
  return sign | (code < format.most ? static_cast<uint32_t>(code) : format.most);
}

float decode_small(const SmallFloat& format, uint32_t code) {
  const uint32_t magnitude = code & ((1u << format.sign_bit) - 1);
  const int field = static_cast<int>(magnitude >> format.mantissa);
  const float fraction = static_cast<float>(magnitude & ((1u << format.mantissa) - 1));
  const int step = format.lowest - format.mantissa;
  float value = std::ldexp(fraction, step);
  if (field > 0) value = std::ldexp(fraction + static_cast<float>(1 << format.mantissa), field - 1 + step);
  if (format.sign_bit == 15 && magnitude == format.most) value = __builtin_inff();
  if (format.sign_bit == 15 && magnitude > format.most) value = __builtin_nanf("");
  return (code >> format.sign_bit) & 1 ? -value : value;
}

// ---------------------------------------------------------------- numbers of a unit

float read_float(const uint8_t* bytes, int64_t index) {
  float x;
  std::memcpy(&x, bytes + index * 4, sizeof x);
  return x;
}

uint16_t read_half(const uint8_t* bytes, int64_t index) {
  uint16_t x;
  std::memcpy(&x, bytes + index * 2, sizeof x);
  return x;
}

// Element `index` of a [..][..] array of the type (not values of int4, whose nibbles share bytes).
float read_number(KvType type, const uint8_t* bytes, int64_t index) {
  switch (type) {
    case KvType::float32: return read_float(bytes, index);
    case KvType::bfloat16: return decode_bfloat16(read_half(bytes, index));
    case KvType::float16: return decode_small(kFloat16, read_half(bytes, index));
    case KvType::fp8: return decode_small(kFloat8, bytes[index]);
    default: return static_cast<int8_t>(bytes[index]);
  }
}

float read_nibble(uint8_t byte, int which) {
  return static_cast<float>((which == 0 ? byte & 15 : byte >> 4) - 8);
}

bool has_token_scales(KvType type) { return type == KvType::int8 || type == KvType::int4; }

// Where key dimension d of a token stands, counted in numbers; value dimension d alike.
int64_t key_index(const KvLayout& kv, int token, int d) {
  switch (kv.type) {
    case KvType::bfloat16: return (d / 2 * kUnitTokens + token) * 2 + d % 2;
    case KvType::int8: return (d / 4 * kUnitTokens + token) * 4 + d % 4;
    default: return d * kUnitTokens + token;
  }
}

int64_t value_index(const KvLayout& kv, int token, int d) {
  switch (kv.type) {
    case KvType::bfloat16: return (token / 2 * kv.padded_dim + d) * 2 + token % 2;
    case KvType::fp8: return token / 2 * kv.padded_dim * 2 + d / 16 * 32 + token % 2 * 16 + d % 16;
    case KvType::int8: return (token / 4 * kv.padded_dim + d) * 4 + token % 4;
    default: return token * kv.padded_dim + d;
  }
}

// Keys of int8 are stored plus 128, which is what flips their highest bit.
constexpr uint8_t kKeyFlip = 0x80;

float key_of(const KvLayout& kv, const uint8_t* unit, int token, int d) {
  const float scale = has_token_scales(kv.type) ? read_float(unit + kv.key_scales, token)
                      : kv.type == KvType::fp8  ? kv.key_scale
                                                : 1.0f;
  const int64_t index = key_index(kv, token, d);
  if (kv.type == KvType::int8) return scale * static_cast<int8_t>(unit[index] ^ kKeyFlip);
  return scale * read_number(kv.type, unit, index);
}

float value_of(const KvLayout& kv, const uint8_t* unit, int token, int d) {
  const float scale = has_token_scales(kv.type) ? read_float(unit + kv.value_scales, token)
                      : kv.type == KvType::fp8  ? kv.value_scale
                                                : 1.0f;
  const uint8_t* values = unit + kv.values;
  if (kv.type == KvType::int4) return scale * read_nibble(values[token / 2 * kv.padded_dim + d], token % 2);
  return scale * read_number(kv.type, values, value_index(kv, token, d));
}

// ---------------------------------------------------------------- append

void write_number(KvType type, uint8_t* bytes, int64_t index, float x) {
  uint16_t half = 0;
  switch (type) {
    case KvType::float32: std::memcpy(bytes + index * 4, &x, sizeof x); return;
    case KvType::bfloat16: half = encode_bfloat16(x); break;
    case KvType::float16: half = static_cast<uint16_t>(encode_small(kFloat16, x)); break;
    default: bytes[index] = static_cast<uint8_t>(encode_small(kFloat8, x)); return;
  }
  std::memcpy(bytes + index * 2, &half, sizeof half);
}

void write_nibble(uint8_t* byte, int which, int8_t code) {
  const int nibble = (code + 8) & 15;
  *byte = static_cast<uint8_t>(which == 0 ? (*byte & 0xf0) | nibble : (*byte & 0x0f) | nibble << 4);
}

void append_numbers(const KvLayout& kv, uint8_t* unit, int slot, const float* key, const float* value) {
  const float key_scale = kv.type == KvType::fp8 ? kv.key_scale : 1.0f;
  const float value_scale = kv.type == KvType::fp8 ? kv.value_scale : 1.0f;
  for (int d = 0; d < kv.padded_dim; ++d) {
    const float k = d < kv.head_dim ? key[d] / key_scale : 0.0f;
    const float v = d < kv.head_dim ? value[d] / value_scale : 0.0f;
    write_number(kv.type, unit, key_index(kv, slot, d), k);
    write_number(kv.type, unit + kv.values, value_index(kv, slot, d), v);
  }
}

void append_codes(const KvLayout& kv, uint8_t* unit, int slot, const float* key, const float* value) {
  int8_t keys[kMostHeadDim] = {};
  int8_t values[kMostHeadDim] = {};
  const float limit = kv.type == KvType::int8 ? 127.0f : 7.0f;
  const float key_scale = quantize(key, kv.head_dim, 127.0f, keys);
  const float value_scale = quantize(value, kv.head_dim, limit, values);
  std::memcpy(unit + kv.key_scales + slot * sizeof(float), &key_scale, sizeof(float));
  std::memcpy(unit + kv.value_scales + slot * sizeof(float), &value_scale, sizeof(float));
  for (int d = 0; d < kv.padded_dim; ++d) {
    const uint8_t key_code = static_cast<uint8_t>(keys[d]);
    unit[key_index(kv, slot, d)] = kv.type == KvType::int8 ? key_code ^ kKeyFlip : key_code;
    if (kv.type == KvType::int8) {
      unit[kv.values + value_index(kv, slot, d)] = static_cast<uint8_t>(values[d]);
    } else {
      write_nibble(unit + kv.values + slot / 2 * kv.padded_dim + d, slot % 2, values[d]);
    }
  }
}

void append(const KvLayout& kv, uint8_t* unit, int slot, int tokens, const float* keys, const float* values,
            int64_t stride) {
  const auto append_one = has_token_scales(kv.type) ? append_codes : append_numbers;
  for (int t = 0; t < tokens; ++t) append_one(kv, unit, slot + t, keys + t * stride, values + t * stride);
}

// ---------------------------------------------------------------- attention

void attend_row(const AttendRows& rows, int row, int span, AttendState& state) {
  const KvLayout& kv = rows.layout;
  const int position = rows.positions[row];
  const int last = position < (span + 1) * kSpanTokens - 1 ? position : (span + 1) * kSpanTokens - 1;
  int first = span * kSpanTokens;
  if (rows.window > 0 && position - rows.window + 1 > first) first = position - rows.window + 1;
  state.maximum = -__builtin_inff();
  state.sum = 0.0f;
  for (int d = 0; d < kv.padded_dim; ++d) state.weighted[d] = 0.0f;

  float scores[kSpanTokens];
  for (int t = first; t <= last; ++t) {
    const uint8_t* unit = rows.units[t / kUnitTokens];
    float score = 0.0f;
    for (int d = 0; d < kv.head_dim; ++d)
      score += rows.queries[row][d] * key_of(kv, unit, t % kUnitTokens, d);
    score *= rows.scale;
    if (rows.softcap > 0.0f) score = rows.softcap * std::tanh(score / rows.softcap);
    scores[t - first] = score;
    if (score > state.maximum) state.maximum = score;
  }
  for (int t = first; t <= last; ++t) {
    const float p = std::exp(scores[t - first] - state.maximum);
    const uint8_t* unit = rows.units[t / kUnitTokens];
    state.sum += p;
    for (int d = 0; d < kv.padded_dim; ++d) state.weighted[d] += p * value_of(kv, unit, t % kUnitTokens, d);
  }
}

void attend_span(const AttendRows& rows, int span, AttendState* states) {
  for (int row = 0; row < rows.rows; ++row) attend_row(rows, row, span, states[row]);
}

// A sum of zero says that nothing was seen: whatever is seen adds 1 for the maximum.
void merge_state(AttendState& into, const AttendState& from, int padded_dim) {
  if (from.sum == 0.0f) return;
  const float maximum = into.sum == 0.0f || from.maximum > into.maximum ? from.maximum : into.maximum;
  const float kept = into.sum == 0.0f ? 0.0f : std::exp(into.maximum - maximum);
  const float added = std::exp(from.maximum - maximum);
  into.maximum = maximum;
  into.sum = into.sum * kept + from.sum * added;
  for (int d = 0; d < padded_dim; ++d) into.weighted[d] = into.weighted[d] * kept + from.weighted[d] * added;
}

void finish_state(const AttendState& state, int head_dim, float* out) {
  const float factor = 1.0f / state.sum;
  for (int d = 0; d < head_dim; ++d) out[d] = state.weighted[d] * factor;
}

void set_attention_kernels(KernelTable& table) {
  table.append = append;
  table.attend_rows = 12;
  table.attend_span = attend_span;
  table.merge_state = merge_state;
  table.finish_state = finish_state;
}
