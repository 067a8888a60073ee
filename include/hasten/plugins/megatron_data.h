// MegatronLmDummyDataLoader: a placeholder for the loaders of Megatron's indexed data.
//
// A program gives a path and how its sequences are split. prepare makes the loaders of the three parts, in Megatron's
// order of samples (data/dataset/indexed.h), as Accelerate's class of this name does.
#pragma once

#include <torch/data/samplers/sequential.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hasten/accelerator/options.h"
#include "hasten/data/dataset/indexed.h"
#include "hasten/data/loader/loader.h"

namespace hasten::parallel {

struct MegatronDataOptions {
  /// The path of the .idx and .bin files without these ends.
  std::string data_path = {};
  /// Shares of the sequences for training, validation and test (data::split_sequences).
  std::string splits_string = "969, 30, 1";
  /// Samples of a part of a batch. A batch has as many parts as num_micro_batches of the plugin.
  int64_t micro_batch_size = 1;
  /// Tokens of a sample; 0: seq_length of the plugin.
  int64_t seq_length = 0;
  uint32_t seed = 1234;
  /// Samples of each part, of all ranks. 0: as many as train_iters, eval_iters and eval_interval of the plugin take. If
  /// train_iters is unset, one epoch.
  int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
};

using MegatronLoader = data::Loader<data::GptSamples, torch::data::samplers::SequentialSampler>;

/// Parts that splits_string leaves empty have no loader. Batches have "text", which models::gpt_train_step takes.
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
/// length.
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
