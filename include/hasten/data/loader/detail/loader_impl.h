// The common part of every kind of loader behind its handle: its place among the ranks, its options and its epochs. It
// also has the rules for a pass that is dispatched from rank 0. Part of map_loader.h and stream_loader.h.
#pragma once

#include <torch/data/dataloader_options.h>

#include <functional>
#include <memory>
#include <optional>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/loader/detail/epoch_counter.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"
#include "hasten/data/loader/loader_options.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/process/process.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data::detail {

class Dispatcher;

/// Refuses what a world of several cannot do with these options, and what no loader can do.
void check_loader_options(const torch::data::FullDataLoaderOptions& options);
struct LoaderFacts {
  std::optional<size_t> batch_size = {};
  bool sampler_spreads_itself = false;
  bool can_be_placed = true;
  bool can_be_dispatched = true;
  /// Whether samples of a batch are separable; needed where batches are cut (streams).
  bool has_rows = true;
  bool is_stream = false;
  /// Whether batches come in an order that can be gone on from.
  bool keeps_position = true;
};
void check_prepare(const process::Process& process, const LoaderOptions& own, const LoaderFacts& facts);
[[noreturn]] void throw_prepared_twice(const Origin& origin);
[[noreturn]] void throw_unknown_size(const Origin& origin);

class LoaderImpl {
 public:
  LoaderImpl(const torch::data::DataLoaderOptions& options, const BatchOperations& operations);

  bool prepared() const noexcept { return process_.has_value(); }
  const torch::data::DataLoaderOptions& options() const noexcept { return given_options_; }
  EpochCounter& epochs() noexcept { return epochs_; }

 protected:
  /// False if it was prepared for the same gradient state before.
  bool adopt(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
             const LoaderOptions& own, const LoaderFacts& facts);

  Origin origin() const;
  size_t world_size() const noexcept { return process_ ? static_cast<size_t>(process_->world_size()) : size_t{1}; }
  bool is_ordered() const noexcept { return options_.workers <= 1 || options_.enforce_ordering; }
  bool splits() const noexcept { return own_.split_batches; }
  bool dispatches() const noexcept { return dispatches_; }
  /// Makes a pass of the sampler's batches as they are: in a world of one, and for rank 0's reads for all.
  BatchShardOptions shard(std::optional<size_t> batch_size) const;
  /// Returns the number of batches that each rank is dispatched from `num_batches` base batches.
  size_t dispatched_length(size_t num_batches) const noexcept;
  /// Before a pass whose ranks share something besides (`shares`), or are dispatched to.
  void require_all(bool shares) const;
  /// Makes the default generators those of rank 0, if rng_types requests it.
  void synchronize_generators() const;

  /// Adds what a pass that the caller sees has: gradient state, device, epochs, errors.
  void show(PipelineStages& stages) const;
  std::shared_ptr<Dispatcher> dispatcher(size_t position, ReadBase read, std::function<AnyBatch()> first_rows) const;
  /// Returns a pass in which every step is what rank 0 hands out.
  PipelineStages dispatched(std::shared_ptr<Dispatcher> dispatcher, std::shared_ptr<void> owner) const;

  const torch::data::DataLoaderOptions given_options_;
  torch::data::FullDataLoaderOptions options_;
  EpochCounter epochs_;
  std::optional<process::Process> process_;
  std::shared_ptr<training::GradientState> gradient_state_;
  LoaderOptions own_;
  bool dispatches_ = false;
  const BatchOperations operations_;

 private:
  TransferStage transfer_stage() const;
};

}  // namespace hasten::data::detail
