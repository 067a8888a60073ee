// Samples of Megatron's indexed datasets (files/folders/indexed_tokens.h): rows of as many tokens each, cut from all
// documents in a row.
//
// The order is Megatron-Core's GPTDataset, number for number. Documents are shuffled and joined, epoch after epoch, cut
// into samples, and these are shuffled in turn. A last epoch of which little is needed is shuffled apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hasten/files/folders/indexed_tokens.h"

namespace hasten::data {

/// The sequences [begin, end) of a dataset.
struct SequenceRange {
  int64_t begin = 0, end = 0;
  int64_t size() const noexcept { return end - begin; }
  bool operator==(const SequenceRange&) const = default;
};

/// Returns the parts for training, validation and test of `size` sequences. `splits` are their shares in order, such
/// as "969, 30, 1", with commas or slashes between. Shares count by their sum, and those that lack are 0.
/// Throws: UsageError for another text, or numbers below 0 of which none is above.
std::array<SequenceRange, 3> split_sequences(std::string_view splits, int64_t size);

struct GptSamplesOptions {
  /// A sample has one token more, which is the label of the last.
  int64_t seq_length = 1024;
  /// As many epochs as these take; 0: one epoch.
  int64_t num_samples = 0;
  uint32_t seed = 1234;
};

/// A batch has "text" [samples, seq_length + 1] of 64-bit integers, as models::gpt_batch takes it. The samples are in
/// their order: take a SequentialSampler. Copies and workers share the files, which must not change meanwhile.
class GptSamples : public torch::data::datasets::BatchDataset<GptSamples, std::map<std::string, at::Tensor>> {
 public:
  static constexpr bool kThreadSafe = true;

  /// Throws: UsageError for a seq_length below 1, a num_samples below 0, or a range outside of the tokens; UsageError
  /// for a range of fewer tokens than a sample takes; DataError for tokens that are no integers.
  GptSamples(const files::IndexedTokens& tokens, const SequenceRange& range, const GptSamplesOptions& options);

  /// Blocks: on the file. Throws: DataError for an index out of range.
  std::map<std::string, at::Tensor> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;
  /// Returns how often the documents are read.
  int64_t num_epochs() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace hasten::data
