// The kernels for avx512-vnni.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
// g++ 12 splits the whole file into tokens before it obeys the pragma, too late for these macros.
#ifndef __AVX512F__
#define __AVX512F__ 1
#endif

namespace gristmill {
namespace {
#include "vector_kernels.inl"
}  // namespace

const KernelTable* avx512_vnni_table() {
  static const KernelTable table = vector_table("avx512-vnni");
  return supports_avx512_vnni() ? &table : nullptr;
}

}  // namespace gristmill
