// Writing keys and values of consecutive tokens into a unit.
//
// Included by attention.inl. The numbers of each token become codes by themselves. Only how codes move
// depends on the tokens beside it: those that fill 16 bytes together are turned over in registers, others
// are written one by one.

template <class Code>
inline __m128i zip_low(__m128i a, __m128i b) {
  return sizeof(Code) == 1   ? _mm_unpacklo_epi8(a, b)
         : sizeof(Code) == 2 ? _mm_unpacklo_epi16(a, b)
                             : _mm_unpacklo_epi32(a, b);
}

template <class Code>
inline __m128i zip_high(__m128i a, __m128i b) {
  return sizeof(Code) == 1   ? _mm_unpackhi_epi8(a, b)
         : sizeof(Code) == 2 ? _mm_unpackhi_epi16(a, b)
                             : _mm_unpackhi_epi32(a, b);
}

// Rows of codes become columns: one after the other, the registers hold code 0 of all rows, code 1, ...
template <class Code, int kRows>
inline void interleave(__m128i* rows) {
#pragma GCC unroll 4
  for (int round = 1; round < kRows; round *= 2) {
    __m128i next[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows / 2; ++i) {
      next[2 * i] = zip_low<Code>(rows[i], rows[i + kRows / 2]);
      next[2 * i + 1] = zip_high<Code>(rows[i], rows[i + kRows / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) rows[i] = next[i];
  }
}

// Codes [kTokens][count] of tokens that stand together: code d of token t at out[d * step + t]. Step is
// kTokens, or kTokens codes are 16 bytes. Count is a multiple of the codes in 16 bytes.
template <class Code, int kTokens>
inline void put_together(const Code* codes, int count, Code* out, int step) {
  constexpr int kCodes = 16 / sizeof(Code);
  for (int d = 0; d < count; d += kCodes) {
    __m128i rows[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t)
      rows[t] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + t * count + d));
    interleave<Code, kTokens>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kTokens; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (d + i * kCodes / kTokens) * step), rows[i]);
  }
}

// Codes [tokens][count] into lines [count][16]: keys.
template <class Code>
inline void put_lines(const Code* codes, int count, int slot, int tokens, uint8_t* unit) {
  constexpr int kTokens = 16 / sizeof(Code);
  Code* lines = reinterpret_cast<Code*>(unit);
  for (int t = 0; t < tokens;) {
    Code* out = lines + slot + t;
    if ((slot + t) % kTokens == 0 && tokens - t >= kTokens) {
      put_together<Code, kTokens>(codes + t * count, count, out, kUnitTokens);
      t += kTokens;
    } else {
      for (int d = 0; d < count; ++d) out[d * kUnitTokens] = codes[t * count + d];
      ++t;
    }
  }
}

// Codes [tokens][count] into words [16 / n][count][n] of n tokens each: values of 1 and 2 bytes.
template <class Code>
inline void put_words(const Code* codes, int count, int slot, int tokens, uint8_t* values) {
  constexpr int kTokens = 4 / sizeof(Code);
  constexpr uint32_t kCode = (1u << 8 * sizeof(Code)) - 1;
  for (int t = 0; t < tokens;) {
    const int token = (slot + t) % kTokens;
    uint8_t* words = values + (slot + t - token) * count * sizeof(Code);
    if (token == 0 && tokens - t >= kTokens) {
      put_together<Code, kTokens>(codes + t * count, count, reinterpret_cast<Code*>(words), kTokens);
      t += kTokens;
    } else {
      const int shift = token * 8 * sizeof(Code);
      uint32_t* __restrict out = reinterpret_cast<uint32_t*>(words);
      const Code* __restrict in = codes + t * count;
      for (int d = 0; d < count; ++d) out[d] = (out[d] & ~(kCode << shift)) | static_cast<uint32_t>(in[d]) << shift;
      ++t;
    }
  }
}

// Values [8][D / 16][2][16].
inline void put_value_rows(const uint8_t* codes, int dim, int slot, int tokens, uint8_t* values) {
  for (int t = slot; t < slot + tokens; ++t, codes += dim) {
    uint8_t* rows = values + t / 2 * dim * 2 + t % 2 * 16;
    for (int d = 0; d < dim; d += 16) std::memcpy(rows + 2 * d, codes + d, 16);
  }
}

// A byte holds two tokens: the other one's nibble stays.
inline void put_value_nibbles(const uint8_t* codes, int dim, int slot, int tokens, uint8_t* values) {
  for (int t = slot; t < slot + tokens; ++t, codes += dim) {
    uint8_t* __restrict bytes = values + t / 2 * dim;
    const uint8_t* __restrict in = codes;
    const int shift = t % 2 * 4;
    const int kept = 0xf0 >> shift;
    for (int d = 0; d < dim; ++d)
      bytes[d] = static_cast<uint8_t>((bytes[d] & kept) | ((in[d] + 8) & 15) << shift);
  }
}

// Sixteen numbers from `d` on; those behind the head's are zero.
inline Floats load_head(const float* x, int d, int head_dim) {
  return head_dim - d >= 16 ? load(x + d) : load_first(x + d, head_dim - d);
}

// Rows of numbers `stride` apart; their codes follow each other, padded_dim a token.
struct HeadRows {
  const float* x;
  int64_t stride;
  int tokens;
  int head_dim;
  int padded_dim;
};

template <class Encode>
inline void encode_rows(const HeadRows& rows, Encode encode) {
  for (int t = 0; t < rows.tokens; ++t)
    for (int d = 0; d < rows.padded_dim; d += 16)
      encode(load_head(rows.x + t * rows.stride, d, rows.head_dim), t * rows.padded_dim + d);
}

inline const uint32_t* encode_f32(const HeadRows& rows, void* out) {
  float* codes = static_cast<float*>(out);
  encode_rows(rows, [codes](Floats a, int i) { store(codes + i, a); });
  return static_cast<const uint32_t*>(out);
}

inline const uint16_t* encode_bf16(const HeadRows& rows, void* out) {
  uint16_t* codes = static_cast<uint16_t*>(out);
  encode_rows(rows, [codes](Floats a, int i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), to_bf16(a));
  });
  return codes;
}

inline const uint16_t* encode_f16(const HeadRows& rows, void* out) {
  uint16_t* codes = static_cast<uint16_t*>(out);
  encode_rows(rows, [codes](Floats a, int i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), to_f16(a));
  });
  return codes;
}

inline const uint8_t* encode_fp8(const HeadRows& rows, float scale, void* out) {
  uint8_t* codes = static_cast<uint8_t*>(out);
  encode_rows(rows, [codes, scale](Floats a, int i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), to_fp8(div(a, broadcast(scale))));
  });
  return codes;
}

// Whole numbers of -limit .. limit, their bits changed by those of `flip`; the scales are max|x| / limit,
// not finite if any x is not.
inline const uint8_t* encode_int(const HeadRows& rows, float limit, char flip, float* scales, void* out) {
  uint8_t* codes = static_cast<uint8_t*>(out);
  const __m128i flips = _mm_set1_epi8(flip);
  for (int t = 0; t < rows.tokens; ++t, codes += rows.padded_dim) {
    const float* x = rows.x + t * rows.stride;
    Floats peak = zero();
    for (int d = 0; d < rows.padded_dim; d += 16) peak = max_bits(peak, magnitude(load_head(x, d, rows.head_dim)));
    const float most = max_bits_lanes(peak);
    const Floats inverse = broadcast(limit / most < __FLT_MAX__ ? limit / most : __FLT_MAX__);
    for (int d = 0; d < rows.padded_dim; d += 16) {
      const __m128i bytes = to_s8(mul(load_head(x, d, rows.head_dim), inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + d), _mm_xor_si128(bytes, flips));
    }
    scales[t] = most / limit;
  }
  return static_cast<const uint8_t*>(out);
}

void append(const KvLayout& kv, uint8_t* unit, int slot, int tokens, const float* keys, const float* values,
            int64_t stride) {
  alignas(64) uint8_t codes[kUnitTokens * kMostHeadDim * sizeof(float)];
  const HeadRows k{keys, stride, tokens, kv.head_dim, kv.padded_dim};
  const HeadRows v{values, stride, tokens, kv.head_dim, kv.padded_dim};
  const int dim = kv.padded_dim;
  uint8_t* to = unit + kv.values;
  float* key_scales = reinterpret_cast<float*>(unit + kv.key_scales) + slot;
  float* value_scales = reinterpret_cast<float*>(unit + kv.value_scales) + slot;
  switch (kv.type) {
    case KvType::float32:
      put_lines(encode_f32(k, codes), dim, slot, tokens, unit);
      encode_f32(v, to + slot * dim * sizeof(float));
      return;
    case KvType::bfloat16:
      put_lines(reinterpret_cast<const uint32_t*>(encode_bf16(k, codes)), dim / 2, slot, tokens, unit);
      put_words(encode_bf16(v, codes), dim, slot, tokens, to);
      return;
    case KvType::float16:
      put_lines(encode_f16(k, codes), dim, slot, tokens, unit);
      encode_f16(v, to + slot * dim * sizeof(uint16_t));
      return;
    case KvType::fp8:
      put_lines(encode_fp8(k, kv.key_scale, codes), dim, slot, tokens, unit);
      put_value_rows(encode_fp8(v, kv.value_scale, codes), dim, slot, tokens, to);
      return;
    case KvType::int8:  // keys plus 128: what flips the highest bit
      put_lines(reinterpret_cast<const uint32_t*>(encode_int(k, 127.0f, '\x80', key_scales, codes)), dim / 4, slot,
                tokens, unit);
      put_words(encode_int(v, 127.0f, 0, value_scales, codes), dim, slot, tokens, to);
      return;
    case KvType::int4:
      put_lines(encode_int(k, 127.0f, 0, key_scales, codes), dim, slot, tokens, unit);
      put_value_nibbles(encode_int(v, 7.0f, 0, value_scales, codes), dim, slot, tokens, to);
      return;
  }
}
