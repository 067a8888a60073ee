// MegatronLmDummyDataLoader: a placeholder for the loaders of Megatron's indexed data.
//
// A program gives a path and how its sequences are split. prepare makes the loaders of the three parts, in Megatron's
// order of samples (data/dataset/{indexed, bert_samples, t5_samples}.h), as Accelerate's class of this name does.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/samplers/sequential.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "hasten/accelerator/options.h"
#include "hasten/data/dataset/bert_samples.h"
#include "hasten/data/dataset/indexed.h"
#include "hasten/data/dataset/t5_samples.h"
#include "hasten/data/dataset/word_pieces.h"
#include "hasten/data/loader/loader.h"

namespace hasten::parallel {

/// The model whose samples a loader has. Accelerate takes it from the model.
enum class MegatronDataKind { kGpt, kBert, kT5 };

struct MegatronDataOptions {
  MegatronDataKind kind = MegatronDataKind::kGpt;
  /// The path of the .idx and .bin files without these ends.
  std::string data_path = {};
  /// Shares of the sequences for training, validation and test (data::split_sequences). For BERT and T5 they are
  /// shares of the documents, whose sequences are sentences.
  std::string splits_string = "969, 30, 1";
  /// Samples of a part of a batch. A batch has as many parts as num_micro_batches of the plugin.
  int64_t micro_batch_size = 1;
  /// Tokens of a sample; 0: seq_length of the plugin, for T5 its encoder_seq_length if that is set.
  int64_t seq_length = 0;
  /// Only for T5: tokens of the decoder; 0: decoder_seq_length of the plugin.
  int64_t decoder_seq_length = 0;
  uint32_t seed = 1234;
  /// Samples of each part, of all ranks. 0: as many as train_iters, eval_iters and eval_interval of the plugin take. If
  /// train_iters is unset, one epoch.
  int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
  /// Only for BERT and T5: the vocabulary, a piece a line, and how many extra ids follow it. T5 needs one for each
  /// masked span of a sample.
  std::string vocab_file = {};
  int64_t vocab_extra_ids = 0;
  /// In the place of vocab_file.
  std::optional<data::WordPieces> pieces = {};
  /// Unset: the defaults of data::BertSamplesOptions and data::T5SamplesOptions.
  std::optional<data::MaskingOptions> masking = {};
  /// Only for BERT: samples of two texts, whose order is to be found out.
  bool bert_binary_head = true;
};

/// Samples of one of the kinds.
class MegatronSamples : public torch::data::datasets::BatchDataset<MegatronSamples, std::map<std::string, at::Tensor>> {
 public:
  static constexpr bool kThreadSafe = true;

  using Samples = std::variant<data::GptSamples, data::BertSamples, data::T5Samples>;
  explicit MegatronSamples(Samples samples) : samples_(std::move(samples)) {}

  /// Blocks: on the file. Throws: as the kind's.
  std::map<std::string, at::Tensor> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

 private:
  Samples samples_;
};

using MegatronLoader = data::Loader<MegatronSamples, torch::data::samplers::SequentialSampler>;

/// Parts that splits_string leaves empty have no loader. Batches have what the kind's step of models/train_steps.h
/// takes: "text" for GPT; "input_ids", "attention_mask", "labels" and others for BERT and T5.
struct MegatronLoaders {
  std::optional<MegatronLoader> train = {}, valid = {}, test = {};
};

class MegatronLmDummyDataLoader {
 public:
  explicit MegatronLmDummyDataLoader(MegatronDataOptions options) : options_(std::move(options)) {}
  const MegatronDataOptions& options() const noexcept { return options_; }

 private:
  MegatronDataOptions options_;
};

/// Returns the loaders of a run with these options, for `data_ranks` ranks with batches of their own.
/// Blocks: on the files. Throws: DataError for the files; UsageError for splits or lengths that cannot be, or no
/// length; UsageError for BERT and T5 without a vocabulary, and as their samples.
MegatronLoaders make_megatron_loaders(const MegatronDataOptions& data, const AcceleratorOptions& options,
                                      int data_ranks);

/// Called by Accelerator::prepare. Collective: yes. Blocks: yes. Throws: as make_megatron_loaders, and as prepare of a
/// loader.
template <class Preparation>
MegatronLoaders prepare_object(const Preparation& preparation, const MegatronLmDummyDataLoader& dummy, bool place) {
  MegatronLoaders loaders =
      make_megatron_loaders(dummy.options(), preparation.options(), preparation.process().world_size());
  for (auto* const loader : {&loaders.train, &loaders.valid, &loaders.test}) {
    if (*loader) *loader = prepare_object(preparation, **loader, place);
  }
  return loaders;
}

}  // namespace hasten::parallel
