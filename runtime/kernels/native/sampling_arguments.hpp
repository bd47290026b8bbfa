// What Python hands to a sampler of rows, checked.
#pragma once

#include <pybind11/numpy.h>

#include <vector>

#include "row_sampler.hpp"

namespace gristmill {

using Logits = pybind11::array_t<float, pybind11::array::c_style>;

// Throws std::invalid_argument or std::out_of_range for rows and states that do not fit the logits. The
// GIL is released while it samples.
std::vector<Choice> sample_checked(RowSampler& sampler, const Logits& logits, const float* tile_maxima,
                                   const std::vector<int64_t>& rows, const std::vector<SamplerState*>& states);

}  // namespace gristmill
