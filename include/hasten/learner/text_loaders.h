// Texts as numbers: a vocabulary of words, streams for a language model, sorted and padded batches for a classifier.
//
// Follows fastai's text data in form. Token 0 is unknown, token 1 padding, 2 the start of a text. Streams are
// contiguous in each row of a batch, and each rank has rows of its own. Classifier batches hold texts of similar
// length, padded at the front.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hasten/learner/loaders.h"

namespace hasten::learner {

/// Words and marks, in small letters; a capital word becomes "xxmaj" and the word.
std::vector<std::string> tokenize(const std::string& text);

class Vocab {
 public:
  static constexpr int64_t kUnknown = 0, kPadding = 1, kStart = 2;
  /// Returns the words that occur at least `least` times, most frequent first, at most `size` of them.
  static Vocab of(const std::vector<std::string>& texts, int64_t least = 3, size_t size = 60'000);
  /// With the start token in front.
  std::vector<int64_t> numbers(const std::string& text) const;
  const std::vector<std::string>& words() const noexcept { return words_; }
  int64_t size() const noexcept { return static_cast<int64_t>(words_.size()); }

 private:
  std::vector<std::string> words_;
  std::map<std::string, int64_t> index_;
};

struct LanguageModelOptions {
  /// Rows of a batch on each rank, and steps of a row.
  int64_t batch_size = 64, seq_len = 72;
};
/// Batches [rows, steps] with the next tokens as targets. The texts are one long stream, cut into batch_size *
/// world_size rows. Row by row, a rank's hidden state fits the next batch. Throws:
/// UsageError for too few tokens, and for a size below 1.
std::vector<Batch> language_model_batches(const std::vector<std::vector<int64_t>>& texts,
                                          const LanguageModelOptions& options, int rank = 0, int world_size = 1);

struct TextBatchOptions {
  int64_t batch_size = 64;
  /// Longer texts keep their last tokens.
  int64_t max_len = 400;
};
/// Batches of texts of similar length, longest first, padded at the front.
/// Throws: UsageError for texts and classes of different number, and for a size below 1.
std::vector<Batch> text_batches(const std::vector<std::vector<int64_t>>& texts, const std::vector<int64_t>& classes,
                                const TextBatchOptions& options);

}  // namespace hasten::learner
