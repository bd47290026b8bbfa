// What each part adds to the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace gristmill {

void bind_sampling(pybind11::module_& m);

}  // namespace gristmill
