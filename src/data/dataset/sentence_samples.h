// Samples of sentences of one document each, in Megatron's order (bert_samples.h, t5_samples.h).
#pragma once

#include <cstdint>
#include <vector>

#include "hasten/data/dataset/indexed.h"
#include "hasten/data/dataset/word_pieces.h"
#include "hasten/files/folders/indexed_tokens.h"

namespace hasten::data {

struct SentenceOptions {
  // Tokens of a sample that come from sentences.
  int64_t max_length = 0;
  int64_t num_samples = 0;
  uint32_t seed = 0;
  double short_sequence_probability = 0;
  int64_t min_sentences = 1;
};

// The sentences [begin, end), which are cut to `length` tokens.
struct SentenceSample {
  int64_t begin = 0, end = 0, length = 0;
};

struct SentenceSamples {
  std::vector<SentenceSample> samples = {};
  int64_t num_epochs = 0;
};

// Throws: UsageError for documents without a sample.
SentenceSamples sentence_samples(const files::IndexedTokens& tokens, const SequenceRange& documents,
                                 const SentenceOptions& options);

// The tokens of a sentence. Throws: DataError for one that the vocabulary lacks.
std::vector<int64_t> sentence_tokens(const files::IndexedTokens& tokens, int64_t sentence, const WordPieces& pieces);

// Refuses options, tokens and documents that both kinds of samples refuse.
struct MaskedChecks {
  int64_t seq_length = 0, least_length = 0, num_samples = 0;
};
void check_masked(const files::IndexedTokens& tokens, const SequenceRange& documents, const MaskingOptions& masking,
                  const MaskedChecks& checks);

// Refuses a special token that is none of the vocabulary's.
void check_token(const char* name, int64_t id, const WordPieces& pieces);

}  // namespace hasten::data
