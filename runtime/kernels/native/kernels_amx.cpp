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
#include "vectors.inl"
#include "elementwise.inl"
#include "attention.inl"
#include "linear_float.inl"
#include "linear_int8_avx512.inl"
#include "linear_int8_amx.inl"
#include "linear_bfloat16_amx.inl"
#include "peak.inl"

KernelTable make_table() {
  KernelTable table{};
  table.name = "amx";
  table.panel = 16;
  set_elementwise_kernels(table);
  set_attention_kernels(table);
  set_linear_float_kernels(table);
  set_linear_int8_kernels(table);
  set_linear_int8_tile_kernels(table);
  set_linear_bfloat16_tile_kernels(table);
  set_peak_kernels(table);
  return table;
}

}  // namespace

const KernelTable* amx_table() {
  static const KernelTable table = make_table();
  return supports_amx() ? &table : nullptr;
}

}  // namespace gristmill
