// The oracle's elementwise kernels and input panels: plain loops that say what is meant.
//
// Included by kernels_scalar.cpp inside an anonymous namespace, before attention_scalar.inl, which
// shares the number formats.

uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// To nearest even; NaN stays NaN.
uint16_t encode_bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float decode_bfloat16(uint16_t code) { return float_of_bits(static_cast<uint32_t>(code) << 16); }

// Whole numbers of -limit .. limit; returns the scale, max|x| / limit. Where x holds something that
// is not finite, so is the scale: what is computed from the codes stays visibly broken.
float quantize(const float* x, int n, float limit, int8_t* codes) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i)
    if (!(std::fabs(x[i]) <= most)) most = std::isnan(most) ? most : std::fabs(x[i]);
  const float inverse = std::fmin(limit / most, __FLT_MAX__);
  for (int i = 0; i < n; ++i)
    codes[i] = std::isfinite(most) ? static_cast<int8_t>(std::nearbyint(x[i] * inverse)) : 0;
  return most / limit;
}

void fill_panel_int8(const float* x, int64_t stride, int tokens, int width, int columns, int8_t* values,
                     float* scales, int32_t* sums) {
  const float zeros[kActivationGroup] = {};
  for (int t = 0; t < width; ++t) {
    for (int g = 0; g < columns / kActivationGroup; ++g) {
      int8_t codes[kActivationGroup];
      const float* group = t < tokens ? x + t * stride + g * kActivationGroup : zeros;
      scales[g * width + t] = quantize(group, kActivationGroup, 127.0f, codes);
      int32_t sum = 0;
      for (int i = 0; i < kActivationGroup; ++i) {
        const int64_t column = g * kActivationGroup + i;
        sum += codes[i];
        if (width == kMostPanelTokens)
          values[t * static_cast<int64_t>(columns) + column] = codes[i];
        else
          values[(column / 4 * width + t) * 4 + column % 4] = codes[i];
      }
      sums[g * width + t] = sum;
    }
  }
}

void fill_panel(ActivationForm form, const float* x, int64_t stride, int tokens, int width, int columns,
                void* values, float* scales, int32_t* sums) {
  if (form == ActivationForm::int8) {
    fill_panel_int8(x, stride, tokens, width, columns, static_cast<int8_t*>(values), scales, sums);
    return;
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int t = 0; t < width; ++t) {
      const float value = t < tokens ? x[t * stride + c] : 0.0f;
      if (form == ActivationForm::bfloat16)
        static_cast<uint16_t*>(values)[(c / 2 * width + t) * 2 + c % 2] = encode_bfloat16(value);
      else
        static_cast<float*>(values)[c * width + t] = value;
    }
  }
}

void store_tile(const float* a, int tokens, int n, const float* bias, bool add, float* y, int64_t stride) {
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < n; ++i) {
      const float value = a[t * kTileRows + i] + (bias != nullptr ? bias[i] : 0.0f);
      y[t * stride + i] = add ? y[t * stride + i] + value : value;
    }
  }
}

float activate(Activation kind, float x) {
  constexpr float kHalfRoot = 0.70710678118654752f;   // sqrt(1 / 2)
  constexpr float kTanhFactor = 0.79788456080286536f;  // sqrt(2 / pi)
  if (kind == Activation::silu) return x / (1.0f + std::exp(-x));
  if (kind == Activation::gelu) return 0.5f * x * std::erfc(-x * kHalfRoot);
  return 0.5f * x * (1.0f + std::tanh(kTanhFactor * (x + 0.044715f * x * x * x)));
}

void gate_tile(Activation kind, const float* a, int tokens, int n, const float* bias, float* y,
               int64_t stride) {
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < n; ++i) {
      const float gate = a[t * kTileRows + i] + (bias != nullptr ? bias[i] : 0.0f);
      const float up = a[t * kTileRows + 16 + i] + (bias != nullptr ? bias[16 + i] : 0.0f);
      y[t * stride + i] = activate(kind, gate) * up;
    }
  }
}

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(sum / n + eps));
  for (int i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void rotate(float* head, const float* cos, const float* sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

// Sums and differences of the two halves, shuffled: in this form every stage is the same, and after
// log2(2 half) stages all numbers are back in their order (Pease 1968).
void butterflies(const float* from, float* to, int half) {
  for (int i = 0; i < half; ++i) {
    to[2 * i] = from[i] + from[half + i];
    to[2 * i + 1] = from[i] - from[half + i];
  }
}

void hadamard(float* x, int n) {
  const int block = n & -n;
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  float other[kMostHeadDim];
  for (int start = 0; start < n; start += block) {
    float* from = x + start;
    float* to = other;
    for (int stage = 1; stage < block; stage *= 2) {
      butterflies(from, to, block / 2);
      float* done = to;
      to = from;
      from = done;
    }
    for (int i = 0; i < block; ++i) x[start + i] = from[i] * norm;
  }
}

void widen(WeightKind kind, const void* row, int n, float* out) {
  for (int i = 0; i < n; ++i)
    out[i] = kind == WeightKind::bfloat16 ? decode_bfloat16(static_cast<const uint16_t*>(row)[i])
                                          : static_cast<const float*>(row)[i];
}

int64_t argmax(const float* x, int64_t n) {
  int64_t best = n > 0 ? 0 : -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return -1;
    if (x[i] > x[best]) best = i;
  }
  return best;
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
