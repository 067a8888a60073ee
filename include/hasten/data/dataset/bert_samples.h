// Samples of Megatron's indexed datasets for BERT: two texts of one document, with masked words.
//
// A document has its sentences as sequences. Numbers are those of Megatron-Core's BERTMaskedWordPieceDataset, draw for
// draw. Where the two texts come in reverse, the order of sentences is to be found out.
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

struct BertSamplesOptions {
  /// Tokens of a sample, with [CLS], two [SEP] and padding.
  int64_t seq_length = 512;
  /// As many epochs as these take; 0: one epoch.
  int64_t num_samples = 0;
  uint32_t seed = 1234;
  /// A sample has two texts, half of the pairs in reverse. Without it, it has one.
  bool sentence_order = true;
  WordPieces pieces = {};
  MaskingOptions masking = {};
};

/// A batch has what models::bert_train_step takes, 64-bit integers [samples, seq_length]: "input_ids",
/// "attention_mask" (0: padding), "token_type_ids" (1: the second text) and "labels" (-100: not masked). With
/// sentence_order there is "next_sentence_label" [samples] as well, which is 1 for texts in reverse.
/// Samples are in their order: take a SequentialSampler. Copies and workers share the files, which must not change
/// meanwhile.
class BertSamples : public torch::data::datasets::BatchDataset<BertSamples, std::map<std::string, at::Tensor>> {
 public:
  static constexpr bool kThreadSafe = true;

  /// `range`: documents of the tokens, not sequences. Documents with a sentence of more than 512 tokens among several
  /// are left out, and with sentence_order those of a single sentence.
  /// Throws: UsageError for options that cannot be, and tokens that `pieces` lacks; UsageError for a range outside of
  /// the documents or without a sample; DataError for tokens that are no integers.
  BertSamples(const files::IndexedTokens& tokens, const SequenceRange& range, const BertSamplesOptions& options);

  /// Blocks: on the file. Throws: DataError for an index out of range, or a token that the vocabulary lacks.
  std::map<std::string, at::Tensor> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;
  /// Returns how often the documents are read.
  int64_t num_epochs() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace hasten::data
