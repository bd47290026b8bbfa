// Parts of the Python module, each bound where it is written.
#pragma once

#include <pybind11/pybind11.h>

namespace gristmill {

void bind_linear_kernels(pybind11::module_& m);

}  // namespace gristmill
