// All kernels of one vector instruction set, and its table: what every unit but the scalar one includes
// inside its anonymous namespace, after its target pragma and macros.
#include "vectors.inl"
#include "hadamard.inl"
#include "elementwise.inl"
#include "attention.inl"
#include "linear_float.inl"
#if defined(__AVX512F__)
#include "linear_int8_avx512.inl"
#else
#include "linear_int8_avx2.inl"
#endif
#if defined(__AMX_INT8__)
#include "linear_int8_amx.inl"
#include "tile_transpose.inl"
#include "decode_bfloat16_amx.inl"
#include "finish_bfloat16_amx.inl"
#include "linear_bfloat16_amx.inl"
#include "attention_amx.inl"
#endif
#include "peak.inl"

KernelTable vector_table(const char* name) {
  KernelTable table{};
  table.name = name;
  table.panel = 8;
  set_elementwise_kernels(table);
  set_attention_kernels(table);
  set_linear_float_kernels(table);
  set_linear_int8_kernels(table);
#if defined(__AMX_INT8__)
  table.panel = 16;
  set_linear_int8_tile_kernels(table);
  set_linear_bfloat16_tile_kernels(table);
  set_attention_tile_kernels(table);
#endif
  set_peak_kernels(table);
  return table;
}
