// The kernels for amx.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,amx-tile,amx-int8")
// g++ 12 splits the whole file into tokens before it obeys the pragma, too late for these macros.
#ifndef __AVX512F__
#define __AVX512F__ 1
#endif
#ifndef __AVX512BF16__
#define __AVX512BF16__ 1
#endif

namespace gristmill {
namespace {
#if __has_include("vectors.inl")
#include "vectors.inl"
#endif
#if __has_include("elementwise.inl")
#include "elementwise.inl"
#endif
#if __has_include("attention.inl")
#include "attention.inl"
#endif
#if __has_include("linear_float.inl")
#include "linear_float.inl"
#endif
#if __has_include("linear_int8_avx512.inl")
#include "linear_int8_avx512.inl"
#endif
#if __has_include("linear_int8_amx.inl")
#include "linear_int8_amx.inl"
#endif

KernelTable make_table() {
  KernelTable table{};
  table.name = "amx";
  table.panel = 16;
#if __has_include("elementwise.inl")
  set_elementwise_kernels(table);
#endif
#if __has_include("attention.inl")
  set_attention_kernels(table);
#endif
#if __has_include("linear_float.inl")
  set_linear_float_kernels(table);
#endif
#if __has_include("linear_int8_avx512.inl")
  set_linear_int8_kernels(table);
#endif
#if __has_include("linear_int8_amx.inl")
  set_linear_int8_kernels(table);
#endif
  return table;
}

}  // namespace

const KernelTable* amx_table() {
  static const KernelTable table = make_table();
  return supports_amx() ? &table : nullptr;
}

}  // namespace gristmill
