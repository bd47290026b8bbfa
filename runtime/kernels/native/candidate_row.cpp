// The view of a row: its largest value, and the blocks that its settings change.
#include "candidate_row.hpp"

namespace gristmill {

CandidateRow::CandidateRow(const float* logits, int64_t size, const float* tile_maxima, RowMemory& memory)
    : logits_(logits), size_(size), memory_(memory) {
  memory.maxima.resize(vocabulary_blocks(size));
  best_ = tile_maxima == nullptr ? block_maxima(logits, size, memory.maxima.data())
                                 : merge_maxima(tile_maxima, vocabulary_tiles(size), memory.maxima.data());
}

int64_t CandidateRow::first_best() const {
  const int64_t index = std::find(maxima().begin(), maxima().end(), best_) - maxima().begin();
  const float* start = block(index);
  const int64_t count = std::min(kVocabularyBlock, size_ - index * kVocabularyBlock);
  return index * kVocabularyBlock + (std::find(start, start + count, best_) - start);
}

void CandidateRow::begin_changes() {
  changed_ = true;
  memory_.copies.resize(maxima().size() * kVocabularyBlock);
  memory_.is_copied.assign(maxima().size(), 0);
}

float& CandidateRow::change(int64_t place) {
  const int64_t index = place / kVocabularyBlock;
  if (memory_.is_copied[index] == 0) {
    const int64_t start = index * kVocabularyBlock;
    std::copy_n(logits_ + start, std::min(kVocabularyBlock, size_ - start), memory_.copies.data() + start);
    memory_.is_copied[index] = 1;
  }
  return memory_.copies[place];
}

void CandidateRow::end_changes() {
  for (size_t index = 0; index < maxima().size(); ++index) {
    if (memory_.is_copied[index] == 0) continue;
    const int64_t start = static_cast<int64_t>(index) * kVocabularyBlock;
    const int64_t count = std::min(kVocabularyBlock, size_ - start);
    block_maxima(memory_.copies.data() + start, count, &memory_.maxima[index]);
  }
  best_ = *std::max_element(maxima().begin(), maxima().end());
}

}  // namespace gristmill
