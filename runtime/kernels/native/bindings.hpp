// What each part of the module adds to it.
#pragma once

#include <pybind11/pybind11.h>

namespace gristmill {

void bind_engine(pybind11::module_& m);
void bind_measures(pybind11::module_& m);
void bind_linear_kernels(pybind11::module_& m);
void bind_attention_kernels(pybind11::module_& m);  // and elementwise ones
void bind_sampling(pybind11::module_& m);

}  // namespace gristmill
