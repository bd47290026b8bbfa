// How each type of cached keys and values is read, sixteen numbers at a time.
//
// Included by attention.inl. A type K has
//   keys(unit, d, a, b)                  dimensions d and d + 1 (d even) of the unit's 16 tokens
//   values(values, D, t, d, a, b)        dimensions d .. d + 15 of tokens t and t + 1 (t even)
//   key_bytes(d), value_bytes(D, t, d)   where these start, in bytes
//   kTokenPairs                          whether two tokens' values share their bytes
//   kKeyLines                            cache lines of keys that two dimensions touch
//   kScaled                              whether scores and weights are multiplied by
//   key_factor, value_factor             one factor for each of the unit's tokens

struct Unscaled {
  static constexpr bool kScaled = false;
  static Floats key_factor(const KvLayout&, const uint8_t*) { return broadcast(1.0f); }
  static Floats value_factor(const KvLayout&, const uint8_t*) { return broadcast(1.0f); }
};

struct TokenScaled {
  static constexpr bool kScaled = true;
  static Floats key_factor(const KvLayout& kv, const uint8_t* unit) {
    return load(reinterpret_cast<const float*>(unit + kv.key_scales));
  }
  static Floats value_factor(const KvLayout& kv, const uint8_t* unit) {
    return load(reinterpret_cast<const float*>(unit + kv.value_scales));
  }
};

struct Float32Kv : Unscaled {
  static constexpr bool kTokenPairs = false;
  static constexpr int kKeyLines = 2;
  static int key_bytes(int d) { return d * 64; }
  static int value_bytes(int dim, int t, int d) { return (t * dim + d) * 4; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    const float* p = reinterpret_cast<const float*>(unit) + d * kUnitTokens;
    a = load(p);
    b = load(p + kUnitTokens);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    const float* p = reinterpret_cast<const float*>(values) + t * dim + d;
    a = load(p);
    b = load(p + dim);
  }
};

struct Bfloat16Kv : Unscaled {
  static constexpr bool kTokenPairs = true;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 32; }
  static int value_bytes(int dim, int t, int d) { return (t * dim + 2 * d) * 2; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(unit) + d * kUnitTokens, a, b);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(values) + t * dim + 2 * d, a, b);
  }
};

struct Float16Kv : Unscaled {
  static constexpr bool kTokenPairs = false;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 32; }
  static int value_bytes(int dim, int t, int d) { return (t * dim + d) * 2; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(unit) + d * kUnitTokens;
    a = load_f16(p);
    b = load_f16(p + kUnitTokens);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(values) + t * dim + d;
    a = load_f16(p);
    b = load_f16(p + dim);
  }
};

struct Fp8Kv {
  static constexpr bool kScaled = true;
  static constexpr float kLoaded = 256.0f;  // load_fp8 divides by it
  static Floats key_factor(const KvLayout& kv, const uint8_t*) { return broadcast(kv.key_scale * kLoaded); }
  static Floats value_factor(const KvLayout& kv, const uint8_t*) {
    return broadcast(kv.value_scale * kLoaded);
  }
  static constexpr bool kTokenPairs = false;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 16; }
  static int value_bytes(int dim, int t, int d) { return t * dim + d; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    a = load_fp8(unit + d * kUnitTokens);
    b = load_fp8(unit + (d + 1) * kUnitTokens);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    a = load_fp8(values + t * dim + d);
    b = load_fp8(values + (t + 1) * dim + d);
  }
};

struct Int8Kv : TokenScaled {
  static constexpr bool kTokenPairs = false;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 16; }
  static int value_bytes(int dim, int t, int d) { return t * dim + d; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    const int8_t* p = reinterpret_cast<const int8_t*>(unit) + d * kUnitTokens;
    a = load_s8(p);
    b = load_s8(p + kUnitTokens);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    const int8_t* p = reinterpret_cast<const int8_t*>(values) + t * dim + d;
    a = load_s8(p);
    b = load_s8(p + dim);
  }
};

struct Int4Kv : TokenScaled {
  static constexpr bool kTokenPairs = true;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 8; }
  static int value_bytes(int dim, int t, int d) { return t / 2 * dim + d; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    load_nibbles(unit + d / 2 * kUnitTokens, a, b);
  }
  static void values(const uint8_t* values, int dim, int t, int d, Floats& a, Floats& b) {
    load_nibbles(values + t / 2 * dim + d, a, b);
  }
};
