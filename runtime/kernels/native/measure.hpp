// What this machine can move and multiply, measured.
#pragma once

#include <cstdint>

#include "kernel_table.hpp"

namespace gristmill {

// Bytes a second that `threads` threads together read from memory, each its share of `bytes`.
double measure_bandwidth(int threads, int64_t bytes);

// Multiply-adds a second of `threads` threads together on inputs of one form.
double measure_compute(const KernelTable& kernels, ActivationForm form, int threads);

}  // namespace gristmill
