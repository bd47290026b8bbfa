// The kernels for amx.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,amx-tile,amx-int8,amx-bf16")
// g++ 12 splits the whole file into tokens before it obeys the pragma, too late for these macros.
#ifndef __AMX_INT8__
#define __AMX_INT8__ 1
#endif
#ifndef __AVX512F__
#define __AVX512F__ 1
#endif
#ifndef __AVX512BF16__
#define __AVX512BF16__ 1
#endif

namespace gristmill {
namespace {
#include "vector_kernels.inl"
}  // namespace

const KernelTable* amx_table() {
  static const KernelTable table = vector_table("amx");
  return supports_amx() ? &table : nullptr;
}

}  // namespace gristmill
