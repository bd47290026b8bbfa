// Token sequences that a completion must not contain.
#pragma once

#include <cstdint>
#include <vector>

namespace gristmill {

// The last token of a sequence is banned while the output ends with the tokens before it; a single token
// always is. The prompt does not count as output.
class BadWords {
 public:
  // Token ids must lie in the vocabulary; an empty sequence throws std::invalid_argument.
  explicit BadWords(const std::vector<std::vector<int64_t>>& words);

  bool empty() const { return words_.empty(); }

  // Add a token to the output.
  void append(int64_t token_id);

  // Calls banned(token_id) for each sequence whose last token is banned now.
  template <typename Banned>
  void visit(Banned&& banned) const {
    for (const std::vector<int64_t>& word : words_) {
      if (ends_with_start_of(word)) banned(word.back());
    }
  }

 private:
  bool ends_with_start_of(const std::vector<int64_t>& word) const;

  std::vector<std::vector<int64_t>> words_;
  std::vector<int64_t> output_;  // kept only if a sequence has a start
  bool has_starts_ = false;
};

}  // namespace gristmill
