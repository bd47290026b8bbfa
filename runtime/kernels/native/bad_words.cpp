// Token sequences that a completion must not contain: comparing their starts with the end of the output.
#include "bad_words.hpp"

#include <algorithm>
#include <stdexcept>

namespace gristmill {

BadWords::BadWords(const std::vector<std::vector<int64_t>>& words) : words_(words) {
  for (const std::vector<int64_t>& word : words_) {
    if (word.empty()) throw std::invalid_argument("a bad word has no tokens");
    has_starts_ |= word.size() > 1;
  }
}

void BadWords::append(int64_t token_id) {
  if (has_starts_) output_.push_back(token_id);
}

bool BadWords::ends_with_start_of(const std::vector<int64_t>& word) const {
  const size_t start = word.size() - 1;
  return start <= output_.size() && std::equal(output_.end() - start, output_.end(), word.begin());
}

}  // namespace gristmill
