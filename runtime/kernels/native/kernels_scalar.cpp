// The kernels for scalar.

#include <cmath>
#include <cstring>

#include "cpu.hpp"
#include "kernel_table.hpp"


namespace gristmill {
namespace {
#include "elementwise_scalar.inl"
#include "attention_scalar.inl"
#include "linear_scalar.inl"
#include "peak_scalar.inl"

KernelTable make_table() {
  KernelTable table{};
  table.name = "scalar";
  table.panel = 8;
  set_elementwise_kernels(table);
  set_attention_kernels(table);
  set_linear_scalar_kernels(table);
  set_peak_kernels(table);
  return table;
}

}  // namespace

const KernelTable* scalar_table() {
  static const KernelTable table = make_table();
  return true ? &table : nullptr;
}

}  // namespace gristmill
