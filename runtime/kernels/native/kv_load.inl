// How each type of cached keys and values is read, sixteen numbers at a time.
//
// Included by attention.inl. A type K has
//   open_keys(unit, D, scratch)          a unit's keys as keys() reads them
//   keys(opened, d, a, b)                dimensions d and d + 1 (d even) of the unit's 16 tokens
//   open_values<C>(values, D, d, scratch)
//                                        dimensions d .. d + 16 C - 1 of a unit's values as values() reads them
//   values(opened, t, c, a, b)           of these the 16 from 16 c on, of tokens t and t + 1 (t even)
//   key_bytes(d), value_bytes(D, t, d)   where these start in the unit, in bytes
//   kScratch                             numbers of scratch memory that opening a unit needs
//   kTokenPairs                          whether two tokens' values share their bytes
//   kKeyLines                            cache lines of keys that two dimensions touch
//   kScaled                              whether scores and weights are multiplied by
//   key_factor, value_factor             one factor for each of the unit's tokens
// kWholeBytes says that attention_int8.inl does all of this instead.

// Dimensions from `d` on of values [..][dim].
struct OpenValues {
  const uint8_t* values;
  int dim;
  int d;
};

// Keys and values are read where they are.
struct ReadInPlace {
  static constexpr bool kWholeBytes = false;
  static constexpr int kScratch = 1;
  static const uint8_t* open_keys(const uint8_t* unit, int, uint16_t*) { return unit; }
  template <int C>
  static OpenValues open_values(const uint8_t* values, int dim, int d, uint16_t*) {
    return {values, dim, d};
  }
};

struct Unscaled : ReadInPlace {
  static constexpr bool kScaled = false;
  static Floats key_factor(const KvLayout&, const uint8_t*) { return broadcast(1.0f); }
  static Floats value_factor(const KvLayout&, const uint8_t*) { return broadcast(1.0f); }
};

struct TokenScaled : ReadInPlace {
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
  static void values(const OpenValues& v, int t, int c, Floats& a, Floats& b) {
    const float* p = reinterpret_cast<const float*>(v.values) + t * v.dim + v.d + 16 * c;
    a = load(p);
    b = load(p + v.dim);
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
  static void values(const OpenValues& v, int t, int c, Floats& a, Floats& b) {
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(v.values) + t * v.dim + 2 * (v.d + 16 * c), a, b);
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
  static void values(const OpenValues& v, int t, int c, Floats& a, Floats& b) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(v.values) + t * v.dim + v.d + 16 * c;
    a = load_f16(p);
    b = load_f16(p + v.dim);
  }
};

// A unit becomes float16 first: from memory these convert in one operation, from a register in two.
struct Fp8Kv {
  static constexpr bool kWholeBytes = false;
  static constexpr int kScratch = kUnitTokens * kMostHeadDim;
  static constexpr bool kScaled = true;
  static constexpr float kWidened = 256.0f;  // widen_fp8 divides by it
  static Floats key_factor(const KvLayout& kv, const uint8_t*) { return broadcast(kv.key_scale * kWidened); }
  static Floats value_factor(const KvLayout& kv, const uint8_t*) {
    return broadcast(kv.value_scale * kWidened);
  }
  static constexpr bool kTokenPairs = true;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 16; }
  static int value_bytes(int dim, int t, int d) { return t * dim + 2 * d; }
  static const uint8_t* open_keys(const uint8_t* unit, int dim, uint16_t* scratch) {
    for (int i = 0; i < dim * kUnitTokens; i += 32) widen_fp8(unit + i, scratch + i);
    return reinterpret_cast<const uint8_t*>(scratch);
  }
  static void keys(const uint8_t* opened, int d, Floats& a, Floats& b) { Float16Kv::keys(opened, d, a, b); }
  template <int C>
  static OpenValues open_values(const uint8_t* values, int dim, int d, uint16_t* scratch) {
    for (int t = 0; t < kUnitTokens; t += 2)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        widen_fp8(values + value_bytes(dim, t, d + 16 * c), scratch + t * 16 * C + 32 * c);
    return {reinterpret_cast<const uint8_t*>(scratch), 16 * C, 0};
  }
  static void values(const OpenValues& v, int t, int c, Floats& a, Floats& b) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(v.values) + t * v.dim + 32 * c;
    a = load_f16(p);
    b = load_f16(p + 16);
  }
};

struct Int8Kv : TokenScaled {
  static constexpr bool kWholeBytes = true;
};

struct Int4Kv : TokenScaled {
  static constexpr bool kTokenPairs = true;
  static constexpr int kKeyLines = 1;
  static int key_bytes(int d) { return d * 16; }
  static int value_bytes(int dim, int t, int d) { return t / 2 * dim + d; }
  static void keys(const uint8_t* unit, int d, Floats& a, Floats& b) {
    a = load_s8(unit + d * kUnitTokens);
    b = load_s8(unit + (d + 1) * kUnitTokens);
  }
  static void values(const OpenValues& v, int t, int c, Floats& a, Floats& b) {
    load_nibbles(v.values + t / 2 * v.dim + v.d + 16 * c, a, b);
  }
};
