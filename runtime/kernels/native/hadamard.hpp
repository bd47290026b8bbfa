// The rotation of keys in front of a quantized cache, and of the queries that read them.
#pragma once

namespace gristmill {

// x[0..n) times the orthonormal Hadamard matrix (Sylvester's), in place and in a fixed order; if n is no
// power of two, in blocks of the largest one that divides it.
void hadamard(float* x, int n);

}  // namespace gristmill
