// Top-p over a whole vocabulary, without sorting it.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling.hpp"

namespace gristmill {

// Leaves in scratch.weights the fewest tokens of largest weight whose share of `total` reaches top_p
// (Holtzman et al. 2020), of equal ones the first, and nothing else; sets scratch.sums to match.
// Returns the new total. scratch.weights holds the weights of softmax_weights, the largest of them 1.
double keep_nucleus(double top_p, double total, SamplingScratch& scratch);

}  // namespace gristmill
