// WordPiece (BERT's tokenizer, lower case): from a vocab.txt of transformers, or made from texts.
//
// Words and marks are split as BERT does it for ASCII; other bytes stay in their word. A word is the longest known
// beginning, then the longest known "##" pieces; a word without such pieces is [UNK].
#pragma once

#include <hasten/core/error.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace example {

inline std::vector<std::string> words_and_marks(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isspace(byte) != 0) {
      in_word = false;
    } else if (std::isalnum(byte) != 0 || byte >= 128) {
      if (!in_word) words.emplace_back();
      words.back() += static_cast<char>(std::tolower(byte));
      in_word = true;
    } else {
      words.emplace_back(1, c);
      in_word = false;
    }
  }
  return words;
}

class WordPiece {
 public:
  /// A token a line. Throws: DataError for a file that is missing, or lacks [CLS], [SEP], [PAD] or [UNK].
  static WordPiece from_file(const std::string& path) {
    std::ifstream file(path);
    WordPiece pieces;
    for (std::string line; std::getline(file, line);) pieces.add(line);
    for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
      if (!pieces.index_.contains(token))
        throw hasten::DataError(hasten::Origin{"wordpiece"}, path, "no ", token, " in ", path,
                                "; expected BERT's vocab.txt.");
    }
    return pieces;
  }
  /// The most frequent words up to `size` tokens, besides all single characters as beginnings and as "##" pieces.
  static WordPiece from_texts(const std::vector<std::string>& texts, size_t size) {
    WordPiece pieces;
    for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) pieces.add(token);
    std::map<std::string, int64_t> counts;
    for (const auto& text : texts) {
      for (auto& word : words_and_marks(text)) ++counts[std::move(word)];
    }
    std::vector<std::pair<int64_t, std::string>> sorted;
    std::map<char, bool> characters;
    for (const auto& [word, count] : counts) {
      sorted.emplace_back(-count, word);
      for (const char c : word) characters[c] = true;
    }
    for (const auto& [c, unused] : characters) {
      pieces.add(std::string(1, c));
      pieces.add(std::string("##") + c);
    }
    std::sort(sorted.begin(), sorted.end());
    for (const auto& [count, word] : sorted) {
      if (pieces.index_.size() >= size) break;
      pieces.add(word);
    }
    return pieces;
  }

  std::vector<int64_t> numbers(const std::string& text) const {
    std::vector<int64_t> result;
    for (const auto& word : words_and_marks(text)) {
      const size_t before = result.size();
      for (size_t begin = 0; begin < word.size();) {
        size_t end = word.size();
        auto found = index_.end();
        for (; end > begin && found == index_.end(); --end)
          found = index_.find((begin > 0 ? "##" : "") + word.substr(begin, end - begin));
        if (found == index_.end()) {
          result.resize(before);
          result.push_back(at("[UNK]"));
          break;
        }
        begin = end + 1;
        result.push_back(found->second);
      }
    }
    return result;
  }
  int64_t at(const std::string& token) const { return index_.at(token); }
  int64_t size() const { return next_; }

 private:
  void add(const std::string& token) { index_.emplace(token, next_++); }
  std::unordered_map<std::string, int64_t> index_;
  int64_t next_ = 0;
};

}  // namespace example
