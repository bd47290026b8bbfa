#include "cpu.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gristmill {
namespace {

// Bit `bit` of register `reg` (0 eax .. 3 edx) of leaf 7, subleaf `subleaf`: features that
// gcc 12's __builtin_cpu_supports has no name for.
bool leaf7(unsigned subleaf, int reg, int bit) {
  unsigned regs[4] = {};
  if (!__get_cpuid_count(7, subleaf, &regs[0], &regs[1], &regs[2], &regs[3])) return false;
  return (regs[reg] >> bit) & 1u;
}

// Linux hands out the tile registers' large state only to processes that ask for it.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool supports_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool supports_avx2_vnni() { return supports_avx2() && leaf7(1, 0, 4); }

bool supports_avx512_vnni() {
  return supports_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool supports_avx512_bf16() { return supports_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }

bool supports_amx() {
  static const bool granted = supports_avx512_bf16() && leaf7(0, 3, 22) && leaf7(0, 3, 24) &&
                              leaf7(0, 3, 25) && request_tiles();
  return granted;
}

}  // namespace gristmill
