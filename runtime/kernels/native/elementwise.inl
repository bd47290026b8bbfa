// Elementwise kernels and input panels on sixteen lanes.
//
// Included inside the anonymous namespace of an instruction set's unit, after vectors.inl.

// ---------------------------------------------------------------- input panels
//
// In every form but the widest int8 one a panel is, in 32-bit words, the transpose of its tokens: word
// w of token t (4 int8, 2 bfloat16 or 1 float) stands at w * width + t. So a panel is made of blocks of
// eight words of every token.

// 32 floats as int8; `peak` is max|x|, not finite if any x is not.
inline __m256i quantize_group(const float* x, float* peak) {
  const Floats a = load(x);
  const Floats b = load(x + 16);
  *peak = max_bits_lanes(max_bits(magnitude(a), magnitude(b)));
  const float inverse = 127.0f / *peak;
  // Where 127 / peak overflows (peak < 2^-121), codes are smaller than they should be, not infinite.
  const Floats factor = broadcast(inverse < __FLT_MAX__ ? inverse : __FLT_MAX__);
  return to_s8(mul(a, factor), mul(b, factor));
}

// Peaks become scales, sixteen in one division.
inline void scale_peaks(float* scales, int count) {
  for (int i = 0; i < count; i += 16)
    store_first(scales + i, div(load_first(scales + i, count - i), broadcast(127.0f)), count - i);
}

inline int32_t sum_s8(__m256i a) {
  const __m256i shifted = _mm256_xor_si256(a, _mm256_set1_epi8(-128));  // a + 128, without a sign
  const __m256i quarters = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(sum) - 32 * 128;
}

inline void store_words(uint32_t* p, __m256i a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }

// out[w * stride + t] = word w of rows[t], for eight rows of eight words.
inline void transpose_words(const __m256i* rows, uint32_t* out, int stride) {
  __m256i pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m256i fours[8];
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    store_words(out + i * stride, _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20));
    store_words(out + (i + 4) * stride, _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31));
  }
}

// Eight words of each of `width` tokens into the panel.
inline void put_block(const __m256i* block, int width, uint32_t* out) {
  if (width == 1) {
    store_words(out, block[0]);
  } else if (width >= 8) {
    for (int t = 0; t < width; t += 8) transpose_words(block + t, out + t, width);
  } else {
    for (int t = 0; t < width; ++t) {
      alignas(32) uint32_t words[8];
      store_words(words, block[t]);
      for (int w = 0; w < 8; ++w) out[w * width + t] = words[w];
    }
  }
}

inline void fill_panel_int8(const float* x, int64_t stride, int tokens, int width, int columns,
                            uint32_t* values, float* scales, int32_t* sums) {
  const int groups = columns / kActivationGroup;
  __m256i block[kMostPanelTokens];
  for (int t = tokens; t < width; ++t) block[t] = _mm256_setzero_si256();
  for (int g = 0; g < groups; ++g) {
    for (int t = 0; t < tokens; ++t) {
      block[t] = quantize_group(x + t * stride + g * kActivationGroup, scales + g * width + t);
      sums[g * width + t] = sum_s8(block[t]);
    }
    for (int t = tokens; t < width; ++t) {
      scales[g * width + t] = 0.0f;
      sums[g * width + t] = 0;
    }
    put_block(block, width, values + static_cast<int64_t>(g) * 8 * width);
  }
  scale_peaks(scales, groups * width);
}

// The widest panel holds int8 token by token.
inline void fill_rows_int8(const float* x, int64_t stride, int tokens, int columns, uint32_t* values,
                           float* scales, int32_t* sums) {
  const int groups = columns / kActivationGroup;
  for (int t = 0; t < kMostPanelTokens; ++t) {
    for (int g = 0; g < groups; ++g) {
      __m256i codes = _mm256_setzero_si256();
      float peak = 0.0f;
      if (t < tokens) codes = quantize_group(x + t * stride + g * kActivationGroup, &peak);
      store_words(values + (static_cast<int64_t>(t) * groups + g) * 8, codes);
      scales[g * kMostPanelTokens + t] = peak;
      sums[g * kMostPanelTokens + t] = sum_s8(codes);
    }
  }
  scale_peaks(scales, groups * kMostPanelTokens);
}

inline __m256i words_of(ActivationForm form, const float* x) {
  return form == ActivationForm::bfloat16 ? to_bf16(load(x))
                                          : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}

inline void fill_panel_numbers(ActivationForm form, const float* x, int64_t stride, int tokens, int width,
                               int columns, uint32_t* values) {
  const int step = form == ActivationForm::bfloat16 ? 16 : 8;  // columns in eight words
  __m256i block[kMostPanelTokens];
  for (int t = tokens; t < width; ++t) block[t] = _mm256_setzero_si256();
  for (int c = 0; c < columns; c += step, values += 8 * width) {
    for (int t = 0; t < tokens; ++t) block[t] = words_of(form, x + t * stride + c);
    put_block(block, width, values);
  }
}

void fill_panel(ActivationForm form, const float* x, int64_t stride, int tokens, int width, int columns,
                void* values, float* scales, int32_t* sums) {
  uint32_t* words = static_cast<uint32_t*>(values);
  if (form != ActivationForm::int8)
    fill_panel_numbers(form, x, stride, tokens, width, columns, words);
  else if (width == kMostPanelTokens)
    fill_rows_int8(x, stride, tokens, columns, words, scales, sums);
  else
    fill_panel_int8(x, stride, tokens, width, columns, words, scales, sums);
}

// ---------------------------------------------------------------- tiles

void store_tile(const float* a, int tokens, int n, const float* bias, bool add_to, float* y, int64_t stride) {
  for (int i = 0; i < n; i += 16) {
    const int lanes = n - i < 16 ? n - i : 16;
    const Floats offset = bias != nullptr ? load_first(bias + i, lanes) : zero();
    for (int t = 0; t < tokens; ++t) {
      float* out = y + t * stride + i;
      Floats value = load(a + t * kTileRows + i);
      if (bias != nullptr) value = add(value, offset);
      if (add_to) value = add(load_first(out, lanes), value);
      store_first(out, value, lanes);
    }
  }
}

inline Floats sigmoid_times(Floats x, Floats u) {  // x / (1 + e^-u)
  return div(x, add(broadcast(1.0f), exponential(sub(zero(), u))));
}

// The error function's complement for z >= 0, within 1.2e-7 of its own size (Numerical Recipes, erfcc).
inline Floats erfc_positive(Floats z) {
  const Floats t = div(broadcast(1.0f), fmadd(z, broadcast(0.5f), broadcast(1.0f)));
  Floats p = broadcast(0.17087277f);
  p = fmadd(p, t, broadcast(-0.82215223f));
  p = fmadd(p, t, broadcast(1.48851587f));
  p = fmadd(p, t, broadcast(-1.13520398f));
  p = fmadd(p, t, broadcast(0.27886807f));
  p = fmadd(p, t, broadcast(-0.18628806f));
  p = fmadd(p, t, broadcast(0.09678418f));
  p = fmadd(p, t, broadcast(0.37409196f));
  p = fmadd(p, t, broadcast(1.00002368f));
  p = fmadd(p, t, broadcast(-1.26551223f));
  return mul(t, exponential(sub(p, mul(z, z))));
}

inline Floats gelu(Floats x) {  // x Phi(x), by the tail of the normal distribution beyond |x|
  const Floats tail = mul(broadcast(0.5f), erfc_positive(mul(magnitude(x), broadcast(0.70710678118654752f))));
  return mul(x, select_below(x, zero(), tail, sub(broadcast(1.0f), tail)));
}

inline Floats gelu_tanh(Floats x) {  // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
  const Floats cube = mul(mul(x, x), x);
  const Floats u = mul(broadcast(2.0f * 0.79788456080286536f), fmadd(cube, broadcast(0.044715f), x));
  return sigmoid_times(x, u);
}

template <Activation kind>
inline Floats activate(Floats x) {
  if constexpr (kind == Activation::silu) return sigmoid_times(x, x);
  if constexpr (kind == Activation::gelu) return gelu(x);
  return gelu_tanh(x);
}

template <Activation kind>
inline void gate_tile_with(const float* a, int tokens, int n, const float* bias, float* y, int64_t stride) {
  for (int t = 0; t < tokens; ++t) {
    Floats gate = load(a + t * kTileRows);
    Floats up = load(a + t * kTileRows + 16);
    if (bias != nullptr) {
      gate = add(gate, load(bias));
      up = add(up, load(bias + 16));
    }
    store_first(y + t * stride, mul(activate<kind>(gate), up), n);
  }
}

void gate_tile(Activation kind, const float* a, int tokens, int n, const float* bias, float* y,
               int64_t stride) {
  switch (kind) {
    case Activation::silu: return gate_tile_with<Activation::silu>(a, tokens, n, bias, y, stride);
    case Activation::gelu: return gate_tile_with<Activation::gelu>(a, tokens, n, bias, y, stride);
    case Activation::gelu_tanh: return gate_tile_with<Activation::gelu_tanh>(a, tokens, n, bias, y, stride);
  }
}

// ---------------------------------------------------------------- rows

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  Floats sums[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 4; ++k) sums[k] = fmadd(load(x + i + 16 * k), load(x + i + 16 * k), sums[k]);
  for (; i < n; i += 16) {
    const Floats part = load_first(x + i, n - i);
    sums[0] = fmadd(part, part, sums[0]);
  }
  const float sum = sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const Floats factor = broadcast(1.0f / square_root(sum / static_cast<float>(n) + eps));
  for (i = 0; i + 16 <= n; i += 16) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
  if (i == n) return;
  const Floats rest = mul(mul(load_first(x + i, n - i), factor), load_first(weight + i, n - i));
  store_first(out + i, rest, n - i);
}

void rotate(float* head, const float* cos, const float* sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const Floats a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(head + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i += 16) {
    const int lanes = half - i;
    const Floats a = load_first(head + i, lanes);
    const Floats b = load_first(head + half + i, lanes);
    const Floats c = load_first(cos + i, lanes);
    const Floats s = load_first(sin + i, lanes);
    store_first(head + i, sub(mul(a, c), mul(b, s)), lanes);
    store_first(head + half + i, add(mul(b, c), mul(a, s)), lanes);
  }
}

void widen(WeightKind kind, const void* row, int n, float* out) {
  if (kind == WeightKind::float32) {
    std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const uint16_t* halves = static_cast<const uint16_t*>(row);
  int i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, load_bf16(halves + i));
  uint16_t rest[16] = {};
  if (i == n) return;
  std::memcpy(rest, halves + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
  store_first(out + i, load_bf16(rest), n - i);
}

int64_t argmax(const float* x, int64_t n) {
  if (n <= 0) return -1;
  Floats best[4];
  Floats finite[4];  // zero, or NaN once a value was not finite: 0 * inf is NaN
  for (int k = 0; k < 4; ++k) {
    best[k] = broadcast(x[0]);
    finite[k] = zero();
  }
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; ++k) {
      const Floats part = load(x + i + 16 * k);
      best[k] = max(best[k], part);
      finite[k] = fmadd(part, zero(), finite[k]);
    }
  }
  float largest = max_lanes(max(max(best[0], best[1]), max(best[2], best[3])));
  const Floats all_finite = add(add(finite[0], finite[1]), add(finite[2], finite[3]));
  if (equal_lanes(all_finite, zero()) != 0xffff) return -1;
  for (; i < n; ++i) {
    if (!(x[i] - x[i] == 0.0f)) return -1;
    largest = x[i] > largest ? x[i] : largest;
  }
  for (i = 0; i + 16 <= n; i += 16) {
    const unsigned equal = equal_lanes(load(x + i), broadcast(largest));
    if (equal != 0) return i + __builtin_ctz(equal);
  }
  for (; i < n; ++i)
    if (x[i] == largest) break;
  return i;
}

void set_elementwise_kernels(KernelTable& table) {
  table.fill_panel = fill_panel;
  table.store_tile = store_tile;
  table.gate_tile = gate_tile;
  table.rms_norm = rms_norm;
  table.rotate = rotate;
  table.hadamard = hadamard;
  table.widen = widen;
  table.argmax = argmax;
}
