// Top-p over a whole vocabulary, without sorting it.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling.hpp"

namespace gristmill {

// What is kept: the tokens with a weight in scratch.weights of at least `least`.
struct Nucleus {
  float least;
  double total;
};

// The fewest tokens of largest weight whose share of `total` reaches top_p (Holtzman et al. 2020), of
// equal ones the first. scratch.weights holds the weights of softmax_weights, the largest of them 1; of
// those beside `least` it keeps what is in the nucleus, and scratch.sums become the sums of the nucleus.
Nucleus find_nucleus(double top_p, double total, SamplingScratch& scratch);

// Whether a token belongs to that nucleus: those before it, larger ones and of equal ones the first, add up
// to less than top_p * total. Changes nothing.
bool in_nucleus(int64_t token, double top_p, double total, const SamplingScratch& scratch);

}  // namespace gristmill
