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
#include "vectors.inl"
#include "elementwise.inl"
#include "attention.inl"
#include "linear_float.inl"
#include "linear_int8_avx512.inl"
#include "peak.inl"

KernelTable make_table() {
  KernelTable table{};
  table.name = "avx512-vnni";
  table.panel = 8;
  set_elementwise_kernels(table);
  set_attention_kernels(table);
  set_linear_float_kernels(table);
  set_linear_int8_kernels(table);
  set_peak_kernels(table);
  return table;
}

}  // namespace

const KernelTable* avx512_vnni_table() {
  static const KernelTable table = make_table();
  return supports_avx512_vnni() ? &table : nullptr;
}

}  // namespace gristmill
