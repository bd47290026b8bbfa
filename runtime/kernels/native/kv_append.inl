// Writing one token's key and value into a unit.
//
// Included by attention.inl. Sixteen numbers at a time become codes in a small buffer; from there keys
// scatter, since a unit holds them dimension by dimension, and values are copied.

// Where a float type's codes go. Types without pairs: keys [D][16], values [16][D].
template <class Code>
inline void put_keys(const Code* codes, int dim, int slot, uint8_t* unit) {
  Code* keys = reinterpret_cast<Code*>(unit) + slot;
  for (int d = 0; d < dim; ++d) keys[d * kUnitTokens] = codes[d];
}

template <class Code>
inline void put_values(const Code* codes, int dim, int slot, uint8_t* values) {
  std::memcpy(values + static_cast<size_t>(slot) * dim * sizeof(Code), codes, dim * sizeof(Code));
}

inline void put_key_pairs(const uint16_t* codes, int dim, int slot, uint8_t* unit) {
  for (int d = 0; d < dim; d += 2) std::memcpy(unit + (d / 2 * kUnitTokens + slot) * 4, codes + d, 4);
}

inline void put_value_pairs(const uint16_t* codes, int dim, int slot, uint8_t* values) {
  uint16_t* pairs = reinterpret_cast<uint16_t*>(values) + slot / 2 * dim * 2 + slot % 2;
  for (int d = 0; d < dim; ++d) pairs[2 * d] = codes[d];
}

// Keys [D / 4][16][4], plus 128; values [4][D][4].
inline void put_key_quads(const int8_t* codes, int dim, int slot, uint8_t* unit) {
  for (int d = 0; d < dim; d += 4) {
    uint32_t quad;
    std::memcpy(&quad, codes + d, sizeof quad);
    quad ^= 0x80808080u;
    std::memcpy(unit + (d / 4 * kUnitTokens + slot) * 4, &quad, sizeof quad);
  }
}

inline void put_value_quads(const int8_t* codes, int dim, int slot, uint8_t* values) {
  uint8_t* quads = values + slot / 4 * dim * 4 + slot % 4;
  for (int d = 0; d < dim; ++d) quads[4 * d] = static_cast<uint8_t>(codes[d]);
}

// Values [8][D / 16][2][16].
inline void put_value_rows(const uint8_t* codes, int dim, int slot, uint8_t* values) {
  uint8_t* rows = values + slot / 2 * dim * 2 + slot % 2 * 16;
  for (int d = 0; d < dim; d += 16) std::memcpy(rows + 2 * d, codes + d, 16);
}

// A byte holds two tokens: the other one's nibble stays.
inline void put_value_nibbles(const int8_t* codes, int dim, int slot, uint8_t* values) {
  uint8_t* bytes = values + slot / 2 * dim;
  const int shift = slot % 2 * 4;
  const int kept = 0xf0 >> shift;
  for (int d = 0; d < dim; ++d)
    bytes[d] = static_cast<uint8_t>((bytes[d] & kept) | ((codes[d] + 8) & 15) << shift);
}

inline void encode_bf16(const float* x, int dim, uint16_t* codes) {
  for (int d = 0; d < dim; d += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + d), to_bf16(load(x + d)));
}

inline void encode_f16(const float* x, int dim, uint16_t* codes) {
  for (int d = 0; d < dim; d += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + d), to_f16(load(x + d)));
}

inline void encode_fp8(const float* x, int dim, float scale, uint8_t* codes) {
  for (int d = 0; d < dim; d += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + d), to_fp8(div(load(x + d), broadcast(scale))));
}

// Whole numbers of -limit .. limit; returns the scale, max|x| / limit, not finite if any x is not.
inline float encode_int(const float* x, int dim, float limit, int8_t* codes) {
  Floats peak = zero();
  for (int d = 0; d < dim; d += 16) peak = max_bits(peak, magnitude(load(x + d)));
  const float most = max_bits_lanes(peak);
  const float inverse = limit / most < __FLT_MAX__ ? limit / most : __FLT_MAX__;
  for (int d = 0; d < dim; d += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + d), to_s8(mul(load(x + d), broadcast(inverse))));
  return most / limit;
}

inline void put_scales(const KvLayout& kv, uint8_t* unit, int slot, float key_scale, float value_scale) {
  reinterpret_cast<float*>(unit + kv.key_scales)[slot] = key_scale;
  reinterpret_cast<float*>(unit + kv.value_scales)[slot] = value_scale;
}

void append(const KvLayout& kv, uint8_t* unit, int slot, const float* key, const float* value) {
  alignas(64) float k[kMostHeadDim];
  alignas(64) float v[kMostHeadDim];
  const int dim = kv.padded_dim;
  for (int d = 0; d < dim; d += 16) {
    store(k + d, load_first(key + d, kv.head_dim - d));
    store(v + d, load_first(value + d, kv.head_dim - d));
  }
  uint8_t* values = unit + kv.values;
  alignas(64) uint16_t halves[2][kMostHeadDim];
  alignas(64) int8_t codes[2][kMostHeadDim];
  uint8_t* bytes[2] = {reinterpret_cast<uint8_t*>(codes[0]), reinterpret_cast<uint8_t*>(codes[1])};
  switch (kv.type) {
    case KvType::float32:
      put_keys(k, dim, slot, unit);
      put_values(v, dim, slot, values);
      return;
    case KvType::bfloat16:
      encode_bf16(k, dim, halves[0]);
      encode_bf16(v, dim, halves[1]);
      put_key_pairs(halves[0], dim, slot, unit);
      put_value_pairs(halves[1], dim, slot, values);
      return;
    case KvType::float16:
      encode_f16(k, dim, halves[0]);
      encode_f16(v, dim, halves[1]);
      put_keys(halves[0], dim, slot, unit);
      put_values(halves[1], dim, slot, values);
      return;
    case KvType::fp8:
      encode_fp8(k, dim, kv.key_scale, bytes[0]);
      encode_fp8(v, dim, kv.value_scale, bytes[1]);
      put_keys(bytes[0], dim, slot, unit);
      put_value_rows(bytes[1], dim, slot, values);
      return;
    case KvType::int8:
      put_scales(kv, unit, slot, encode_int(k, dim, 127.0f, codes[0]), encode_int(v, dim, 127.0f, codes[1]));
      put_key_quads(codes[0], dim, slot, unit);
      put_value_quads(codes[1], dim, slot, values);
      return;
    case KvType::int4:
      put_scales(kv, unit, slot, encode_int(k, dim, 127.0f, codes[0]), encode_int(v, dim, 7.0f, codes[1]));
      put_keys(codes[0], dim, slot, unit);
      put_value_nibbles(codes[1], dim, slot, values);
      return;
  }
}
