// The kernels for avx2.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c")

namespace gristmill {
namespace {
#include "vector_kernels.inl"
}  // namespace

const KernelTable* avx2_table() {
  static const KernelTable table = vector_table("avx2");
  return supports_avx2() ? &table : nullptr;
}

}  // namespace gristmill
