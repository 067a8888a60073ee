// Samples of Megatron's indexed datasets for T5: an encoder's text whose masked spans are one token each, and a
// decoder's text of these spans.
//
// A document has its sentences as sequences. Numbers are those of Megatron-Core's T5MaskedWordPieceDataset, draw for
// draw.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hasten/data/dataset/indexed.h"
#include "hasten/data/dataset/word_pieces.h"
#include "hasten/files/folders/indexed_tokens.h"

namespace hasten::data {

struct T5SamplesOptions {
  /// Tokens of the encoder and of the decoder, with padding.
  int64_t seq_length = 512, decoder_seq_length = 128;
  /// As many epochs as these take; 0: one epoch.
  int64_t num_samples = 0;
  uint32_t seed = 1234;
  WordPieces pieces = {};
  MaskingOptions masking = {.max_ngram = 10, .geometric_ngrams = true};
};

/// A batch has what models::t5_train_step takes, 64-bit integers: "input_ids" and "attention_mask" (0: padding)
/// [samples, seq_length], "decoder_input_ids" and "labels" (-100: padding) [samples, decoder_seq_length].
/// Samples are in their order: take a SequentialSampler. Copies and workers share the files, which must not change
/// meanwhile.
class T5Samples : public torch::data::datasets::BatchDataset<T5Samples, std::map<std::string, at::Tensor>> {
 public:
  static constexpr bool kThreadSafe = true;

  /// `range`: documents of the tokens, not sequences. Documents with a sentence of more than 512 tokens among several
  /// are left out.
  /// Throws: UsageError for options that cannot be, and tokens that `pieces` lacks; UsageError for a range outside of
  /// the documents or without a sample; DataError for tokens that are no integers.
  T5Samples(const files::IndexedTokens& tokens, const SequenceRange& range, const T5SamplesOptions& options);

  /// Blocks: on the file. Throws: DataError for an index out of range, or a token that the vocabulary lacks; UsageError
  /// for a sample with more spans than extra_ids, or than decoder_seq_length holds.
  std::map<std::string, at::Tensor> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;
  /// Returns how often the documents are read.
  int64_t num_epochs() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace hasten::data
