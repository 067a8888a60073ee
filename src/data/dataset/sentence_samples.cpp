// See sentence_samples.h. Source: build_mapping of Megatron-Core's helpers.
#include "data/dataset/sentence_samples.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "data/dataset/token_copies.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::data {
namespace {

const Origin kSentences{"data"};
constexpr int64_t kLongSentence = 512;

class Arranger {
 public:
  Arranger(const files::IndexedTokens& tokens, const SentenceOptions& options)
      : tokens_(tokens), options_(options), engine_(options.seed) {
    // More than any draw, so that one of 0 alone is short.
    constexpr double most = 4294967296.0;
    const double probability = options.short_sequence_probability;
    if (probability > 0) ratio_ = static_cast<uint64_t>(std::min(std::round(1.0 / probability), most));
  }

  void add_document(int64_t first, int64_t behind, std::vector<SentenceSample>& samples) {
    if (behind - first < options_.min_sentences || has_long_sentence(first, behind)) return;
    int64_t begin = first, length = 0;
    int64_t target = draw_length();
    for (int64_t sentence = first; sentence < behind; ++sentence) {
      length += tokens_.lengths()[static_cast<size_t>(sentence)];
      const int64_t left = behind - sentence - 1;
      const bool is_full = length >= target && left > 1 && sentence + 1 - begin >= options_.min_sentences;
      if (!is_full && left > 0) continue;
      samples.push_back({begin, sentence + 1, target});
      begin = sentence + 1;
      length = 0;
      target = draw_length();
    }
  }

 private:
  bool has_long_sentence(int64_t first, int64_t behind) const {
    if (behind - first < 2) return false;
    return std::any_of(tokens_.lengths().begin() + first, tokens_.lengths().begin() + behind,
                       [](int64_t length) { return length > kLongSentence; });
  }
  int64_t draw_length() {
    if (ratio_ == 0) return options_.max_length;
    const uint64_t drawn = engine_();
    if (drawn % ratio_ != 0) return options_.max_length;
    return 2 + static_cast<int64_t>(drawn % static_cast<uint64_t>(options_.max_length - 1));
  }

  const files::IndexedTokens& tokens_;
  const SentenceOptions& options_;
  std::mt19937 engine_;
  uint64_t ratio_ = 0;
};

}  // namespace

SentenceSamples sentence_samples(const files::IndexedTokens& tokens, const SequenceRange& documents,
                                 const SentenceOptions& options) {
  SentenceSamples out;
  Arranger arranger(tokens, options);
  const auto needed = static_cast<size_t>(std::max<int64_t>(options.num_samples, 1));
  while (out.samples.size() < needed) {
    for (auto document = static_cast<size_t>(documents.begin); document < static_cast<size_t>(documents.end);
         ++document) {
      arranger.add_document(tokens.documents()[document], tokens.documents()[document + 1], out.samples);
    }
    ++out.num_epochs;
    if (!out.samples.empty()) continue;
    throw UsageError(kSentences, "documents ", documents.begin, " to ", documents.end,
                     " have no sample; expected one of at least ", count_text(options.min_sentences, "sentence"),
                     ", each of at most ", count_text(kLongSentence, "token"),
                     ". Write each sentence of a document as a sequence (Megatron's --split-sentences), "
                     "give this part more documents, or turn the order of sentences off.");
  }
  // The seed of the order is one more, and may be beyond 32 bits.
  std::mt19937_64 engine(static_cast<uint64_t>(options.seed) + 1);
  for (size_t i = out.samples.size(); i-- > 1;) std::swap(out.samples[i], out.samples[engine() % (i + 1)]);
  if (options.num_samples > 0) out.samples.resize(needed);
  return out;
}

std::vector<int64_t> sentence_tokens(const files::IndexedTokens& tokens, int64_t sentence, const WordPieces& pieces) {
  std::vector<int64_t> all(static_cast<size_t>(tokens.lengths()[static_cast<size_t>(sentence)]));
  copy_tokens(tokens.dtype(), tokens.tokens(sentence), static_cast<int64_t>(all.size()), all.data());
  for (const int64_t token : all) {
    if (token >= 0 && token < pieces.vocab_size) continue;
    throw DataError(kSentences, "", "sentence ", sentence, " has token ", token, " of a vocabulary of ",
                    pieces.vocab_size, ". Give the vocabulary with which the dataset was written.");
  }
  return all;
}

void check_masked(const files::IndexedTokens& tokens, const SequenceRange& documents, const MaskingOptions& masking,
                  const MaskedChecks& checks) {
  const auto num_documents = static_cast<int64_t>(tokens.documents().size()) - 1;
  if (checks.seq_length < checks.least_length || checks.num_samples < 0) {
    throw UsageError(kSentences, "seq_length = ", checks.seq_length, ", num_samples = ", checks.num_samples,
                     "; expected at least ", checks.least_length, " and 0.");
  }
  if (documents.begin < 0 || documents.end > num_documents || documents.size() < 0) {
    throw UsageError(kSentences, "documents ", documents.begin, " to ", documents.end, " of ", num_documents,
                     "; expected some that are there.");
  }
  if (!(masking.masking_probability > 0 && masking.masking_probability < 1) ||
      !(masking.short_sequence_probability >= 0 && masking.short_sequence_probability <= 1)) {
    throw UsageError(kSentences, "masking_probability = ", masking.masking_probability,
                     ", short_sequence_probability = ", masking.short_sequence_probability,
                     "; expected one between 0 and 1, and one of 0 to 1.");
  }
  if (masking.max_ngram < 1) {
    throw UsageError(kSentences, "max_ngram = ", masking.max_ngram, "; expected at least 1.");
  }
  if (tokens.dtype() == files::Dtype::kFloat32 || tokens.dtype() == files::Dtype::kFloat64) {
    throw DataError(kSentences, "", "an indexed dataset of real numbers; expected integers, the numbers of tokens.");
  }
}

void check_token(const char* name, int64_t id, const WordPieces& pieces) {
  if (id >= 0 && id < pieces.vocab_size) return;
  throw UsageError(kSentences, name, " is ", id, " of a vocabulary of ", pieces.vocab_size,
                   "; expected a number of its tokens. Set it in WordPieces, or read a vocabulary that has it.");
}

}  // namespace hasten::data
