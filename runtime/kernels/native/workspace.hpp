// The step's scratch memory, grown to the largest batch so far.
#pragma once

#include <atomic>
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
  Buffer states;    // float [2][kMostAttendRows][kMostHeadDim] at most: weighted values of all spans and of one
  Buffer choice;    // of a mixture: float [experts], their shares, then int32 [experts], an order
  std::vector<const uint8_t*> units;
};

// A linear of an expert over the expert's own tokens; its shares follow those of the experts before.
struct ExpertLinear {
  const Linear* linear;
  Activations x;
  Share share;
  int64_t first_share;
};

// An expert that some tokens go through: `rows` rows from `first_row`, in the order of the tokens.
struct ExpertWork {
  const Expert* expert;
  int32_t first_row;
  int32_t rows;
  int64_t first_panel;  // among those of all experts
  ExpertLinear gate_up, down;
};

// The scratch memory of mixtures. A row is a token on its way through one of its experts.
struct MixtureSpace {
  Buffer normed;       // float [tokens][hidden]: what router and experts read
  Buffer logits;       // float [tokens][experts and gate]
  Buffer chosen;       // int32 [tokens][passes]: the experts of a token, ascending
  Buffer weights;      // float [tokens][passes]: how much each counts
  Buffer token_rows;   // int32 [tokens][passes]: the row of each
  Buffer row_tokens;   // int32 [rows]
  Buffer gated;        // float [rows][intermediate]
  Buffer outputs;      // float [rows][hidden]
  Panels panels;
  std::vector<int32_t> next_rows;  // by expert
  std::vector<ExpertWork> work;
  // Of the layer whose experts were chosen last.
  std::atomic<int64_t> num_panels{0}, gate_up_shares{0}, down_shares{0};
};

struct Workspace {
  Buffer hidden;     // float [tokens][hidden]: the residual stream
  Buffer qkv;        // float [tokens][q + k + v]
  Buffer attended;   // float [tokens][heads * head_dim]
  Buffer gated;      // float [tokens][intermediate], or the panels of the linear that reads it
  Buffer partials;   // float [states][2 + padded head_dim]
  Panels panels;
  MixtureSpace mixture;
  std::vector<ThreadSpace> threads;
};

}  // namespace gristmill
