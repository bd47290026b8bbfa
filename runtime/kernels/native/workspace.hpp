// The step's scratch memory, grown to the largest batch so far.
#pragma once

#include <vector>

#include "aligned.hpp"
#include "model.hpp"

namespace gristmill {

// A linear's input in panels.
struct Panels {
  Buffer values, scales, sums;

  void reserve(int64_t tokens, int64_t columns) {
    values.reserve(tokens * columns * 4);
    scales.reserve(tokens * columns / kActivationGroup * 4);
    sums.reserve(tokens * columns / kActivationGroup * 4);
  }
};

// What one thread takes of a linear at a time, and what of it one call of a kernel does.
struct Share {
  int tiles;
  int panels;       // of one share
  int call_panels;
  bool on_matrix_tiles;
};

// What each thread has for itself.
struct ThreadSpace {
  Panels panels;
  Buffer rows;      // float [kMostPanelTokens][columns]: normed rows on their way into a panel
  Buffer tile;      // float [kChunkTokens][32]: the output of one call of a linear kernel
  Buffer scratch;   // kLinearScratchBytes, where linears run on matrix tiles
  Buffer states;    // float [2][kMostAttendRows][kMostHeadDim]: weighted values of a span and of all
  std::vector<const uint8_t*> units;
};

struct Workspace {
  Buffer hidden;     // float [tokens][hidden]: the residual stream
  Buffer qkv;        // float [tokens][q + k + v]
  Buffer attended;   // float [tokens][heads * head_dim]
  Buffer gated;      // float [tokens][intermediate], or the panels of the linear that reads it
  Buffer partials;   // float [states][2 + padded head_dim]
  Panels panels;
  std::vector<ThreadSpace> threads;
};

}  // namespace gristmill
