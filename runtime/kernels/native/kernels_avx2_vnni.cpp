// The kernels for avx2-vnni.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c,avxvnni")
// g++ 12 splits the whole file into tokens before it obeys the pragma, too late for these macros.
#ifndef __AVXVNNI__
#define __AVXVNNI__ 1
#endif

namespace gristmill {
namespace {
#include "vector_kernels.inl"
}  // namespace

const KernelTable* avx2_vnni_table() {
  static const KernelTable table = vector_table("avx2-vnni");
  return supports_avx2_vnni() ? &table : nullptr;
}

}  // namespace gristmill
