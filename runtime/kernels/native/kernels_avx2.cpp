// The kernels for avx2.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c")

namespace gristmill {
namespace {
#include "vectors.inl"
#include "elementwise.inl"
#include "attention.inl"
#include "linear_float.inl"
#include "linear_int8_avx2.inl"
#include "peak.inl"

KernelTable make_table() {
  KernelTable table{};
  table.name = "avx2";
  table.panel = 8;
  set_elementwise_kernels(table);
  set_attention_kernels(table);
  set_linear_float_kernels(table);
  set_linear_int8_kernels(table);
  set_peak_kernels(table);
  return table;
}

}  // namespace

const KernelTable* avx2_table() {
  static const KernelTable table = make_table();
  return supports_avx2() ? &table : nullptr;
}

}  // namespace gristmill
