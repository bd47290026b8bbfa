// What the instruction set can multiply on registers: the denominator of an efficiency.
//
// Twelve independent sums hide every latency. Without an instruction for a form, the form is counted
// as the kernels compute it.

#if defined(__AVX512F__)
using Register = __m512i;
constexpr int kRegisterBytes = 64;
#else
using Register = __m256i;
constexpr int kRegisterBytes = 32;
#endif

// `instruction` adds to %0 the products of %1 and %2; the compiler must not move it.
#define GRISTMILL_CHAINS(name, instruction, products)                                   \
  int64_t name(int64_t rounds) {                                                         \
    Register sums[12] = {}, x = {}, y = {};                                              \
    for (int64_t i = 0; i < rounds; ++i) {                                               \
      asm volatile(instruction : "+v"(sums[0]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[1]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[2]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[3]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[4]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[5]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[6]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[7]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[8]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[9]) : "v"(x), "v"(y));                        \
      asm volatile(instruction : "+v"(sums[10]) : "v"(x), "v"(y));                       \
      asm volatile(instruction : "+v"(sums[11]) : "v"(x), "v"(y));                       \
    }                                                                                    \
    return rounds * 12 * (products);                                                     \
  }

GRISTMILL_CHAINS(multiply_floats, "vfmadd231ps %2, %1, %0", kRegisterBytes / 4)

#if defined(__AVX512F__)
GRISTMILL_CHAINS(multiply_bytes, "vpdpbusd %2, %1, %0", kRegisterBytes)
#elif defined(__AVXVNNI__)
GRISTMILL_CHAINS(multiply_bytes, "%{vex%} vpdpbusd %2, %1, %0", kRegisterBytes)
#else
// Unsigned times signed bytes to int16; widening and adding come on top of it.
GRISTMILL_CHAINS(multiply_bytes, "vpmaddubsw %2, %1, %0", kRegisterBytes)
#endif

#if defined(__AVX512BF16__)
GRISTMILL_CHAINS(multiply_halves, "vdpbf16ps %2, %1, %0", kRegisterBytes / 2)
#else
int64_t multiply_halves(int64_t rounds) { return multiply_floats(rounds); }
#endif
#undef GRISTMILL_CHAINS

#if defined(__AMX_INT8__)
alignas(64) constexpr TileConfig kFullTiles = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// The two loops differ in their instruction only, which needs constants for its tiles.
int64_t multiply_byte_tiles(int64_t rounds) {
  _tile_loadconfig(&kFullTiles);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 64;
}

int64_t multiply_half_tiles(int64_t rounds) {
  _tile_loadconfig(&kFullTiles);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 32;
}
#endif

int64_t multiply_adds(ActivationForm form, int64_t rounds) {
#if defined(__AMX_INT8__)
  if (form == ActivationForm::int8) return multiply_byte_tiles(rounds);
  if (form == ActivationForm::bfloat16) return multiply_half_tiles(rounds);
#endif
  switch (form) {
    case ActivationForm::int8: return multiply_bytes(rounds);
    case ActivationForm::bfloat16: return multiply_halves(rounds);
    default: return multiply_floats(rounds);
  }
}

void set_peak_kernels(KernelTable& table) { table.multiply_adds = multiply_adds; }
