// One row of logits as the sampler reads it: with the maxima of its blocks, so that most blocks need not
// be read, and with its settings' changes in copies of the blocks that they touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vocabulary_passes.hpp"

namespace gristmill {

// Memory for one row's view, grown as rows need it.
struct RowMemory {
  std::vector<float> maxima, copies;
  std::vector<uint8_t> is_copied;
};

class CandidateRow {
 public:
  // `tile_maxima`, unless null, are those that tile_maxima() finds in the row; the row is then not read.
  CandidateRow(const float* logits, int64_t size, const float* tile_maxima, RowMemory& memory);

  int64_t size() const { return size_; }
  const std::vector<float>& maxima() const { return memory_.maxima; }

  // The largest logit, -infinity for none, or NaN if any is not a number.
  float best() const { return best_; }

  // The place of the first of the largest.
  int64_t first_best() const;

  // A logit to be changed; begin_changes() comes before the first, end_changes() after the last.
  void begin_changes();
  float& change(int64_t place);
  void end_changes();

  const float* block(int64_t index) const {
    return (copied(index) ? memory_.copies.data() : logits_) + index * kVocabularyBlock;
  }
  float at(int64_t place) const { return block(place / kVocabularyBlock)[place % kVocabularyBlock]; }

  // Calls visit(first block, values, count) for the blocks [first, end), as many at once as lie together.
  template <typename Visit>
  void visit_runs(int64_t first, int64_t end, Visit&& visit) const {
    while (first < end) {
      int64_t last = first + 1;
      if (!changed_) last = end;
      while (last < end && copied(last) == copied(first)) ++last;
      visit(first, block(first), std::min(last * kVocabularyBlock, size_) - first * kVocabularyBlock);
      first = last;
    }
  }

 private:
  bool copied(int64_t index) const { return changed_ && memory_.is_copied[index] != 0; }

  const float* logits_;
  int64_t size_;
  RowMemory& memory_;
  float best_;
  bool changed_ = false;
};

}  // namespace gristmill
