// The kernels for scalar.

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"


namespace gristmill {
namespace {
#if __has_include("elementwise_scalar.inl")
#include "elementwise_scalar.inl"
#endif
#if __has_include("attention_scalar.inl")
#include "attention_scalar.inl"
#endif
#if __has_include("linear_scalar.inl")
#include "linear_scalar.inl"
#endif

KernelTable make_table() {
  KernelTable table{};
  table.name = "scalar";
  table.panel = 8;
#if __has_include("elementwise_scalar.inl")
  set_elementwise_kernels(table);
#endif
#if __has_include("attention_scalar.inl")
  set_attention_kernels(table);
#endif
#if __has_include("linear_scalar.inl")
  set_linear_scalar_kernels(table);
#endif
  return table;
}

}  // namespace

const KernelTable* scalar_table() {
  static const KernelTable table = make_table();
  return true ? &table : nullptr;
}

}  // namespace gristmill
