// The kernels for avx512-bf16.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
// g++ 12 splits the whole file into tokens before it obeys the pragma, too late for these macros.
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

const KernelTable* avx512_bf16_table() {
  static const KernelTable table = vector_table("avx512-bf16");
  return supports_avx512_bf16() ? &table : nullptr;
}

}  // namespace gristmill
