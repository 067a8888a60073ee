// The numbers of a WordPiece vocabulary by which BERT and T5 samples are masked (bert_samples.h, t5_samples.h), and how
// words are chosen for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::data {

/// Numbers of -1 are of tokens that the vocabulary lacks.
struct WordPieces {
  int64_t cls_token_id = -1, sep_token_id = -1, mask_token_id = -1, pad_token_id = 0;
  /// Only for T5: the tokens round a text, and one for each masked span of a sample.
  int64_t bos_token_id = -1, eos_token_id = -1;
  std::vector<int64_t> extra_ids = {};
  /// Numbers of tokens are below it.
  int64_t vocab_size = 0;
  /// By number: the token is a "##" piece, which goes on with a word. Tokens behind the last begin one.
  std::vector<bool> continues = {};

  bool continues_word(int64_t token) const {
    return static_cast<uint64_t>(token) < continues.size() && continues[static_cast<size_t>(token)];
  }

  /// Reads a vocab.txt with a piece a line. As Megatron does it, [BOS] and [EOS] follow behind the last piece if they
  /// lack, and then `num_extra_ids` tokens <extra_id_0>, ….
  /// Blocks: on the file. Throws: DataError if it cannot be read; UsageError for num_extra_ids below 0.
  static WordPieces read(const std::string& vocab_file, int64_t num_extra_ids = 0);
};

struct MaskingOptions {
  /// Share of the tokens that are masked, in (0, 1).
  double masking_probability = 0.15;
  /// Share of samples whose length is drawn from 2 to the most; the others have the most.
  double short_sequence_probability = 0.1;
  /// Words that are masked together, at most.
  int64_t max_ngram = 3;
  /// Masks all pieces of a word, or each by itself.
  bool whole_words = true;
  /// Draws long runs of words more often than short ones.
  bool longer_ngrams = false;
  /// Draws the number of words from a geometric distribution of 0.2. It counts before longer_ngrams.
  bool geometric_ngrams = false;
};

}  // namespace hasten::data
