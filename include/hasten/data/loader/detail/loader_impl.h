// What every kind of loader has in common behind its handle: its place among the ranks, its options, its
// epochs, and the rules for a pass that is dispatched from rank 0. Part of map_loader.h and stream_loader.h.
#pragma once

#include <torch/data/dataloader_options.h>

#include <memory>
#include <optional>
#include <utility>

#include "hasten/comm/nested/nested_operations.h"
#include "hasten/data/batch/device_transfer.h"
#include "hasten/data/loader/detail/dispatch.h"
#include "hasten/data/loader/detail/epoch_counter.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"
#include "hasten/data/loader/loader_options.h"
#include "hasten/data/loader/detail/staging.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/process/process.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data::detail {

/// Refuses what a world of several cannot do with these options, and what no loader can do.
void check_loader_options(const torch::data::FullDataLoaderOptions& options);
struct LoaderFacts {
  std::optional<size_t> batch_size;
  bool sampler_spreads_itself = false;
  bool can_be_placed = true;
  bool can_be_dispatched = true;
  /// Whether samples of a batch can be told apart; needed where batches are cut (streams).
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
  explicit LoaderImpl(const torch::data::DataLoaderOptions& options);

  bool prepared() const noexcept { return process_.has_value(); }
  const torch::data::DataLoaderOptions& options() const noexcept { return given_options_; }
  EpochCounter& epochs() noexcept { return epochs_; }

 protected:
  /// False if it was prepared for the same gradient state before.
  bool adopt(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
             const LoaderOptions& own, const LoaderFacts& facts);

  Origin origin() const;
  size_t world_size() const noexcept {
    return process_ ? static_cast<size_t>(process_->world_size()) : size_t{1};
  }
  bool is_ordered() const noexcept { return options_.workers <= 1 || options_.enforce_ordering; }
  bool splits() const noexcept { return own_.split_batches; }
  bool dispatches() const noexcept { return dispatches_; }
  /// A world of one, and what rank 0 reads for all, are the sampler's batches as they are.
  BatchShardOptions shard(std::optional<size_t> batch_size) const;
  /// Batches that each rank is dispatched from so many base batches.
  size_t dispatched_length(size_t num_batches) const noexcept;
  /// Before a pass whose ranks share something besides (`shares`), or are dispatched to.
  void require_all(bool shares) const;
  /// Makes the default generators those of rank 0, if rng_types asks for it.
  void synchronize_generators() const;

  /// Gradient state, device, epochs, errors: what a pass that the caller sees has.
  template <class Batch>
  void show(PipelineStages<Batch>& parts) const {
    parts.origin = origin();
    if constexpr (can_be_placed<Batch>) {
      if (process_ && own_.put_on_device && !process_->device().is_cpu()) {
        parts.placement = placement_of<Batch>();
      }
    }
    parts.received = epochs_.follow();
    if (process_) parts.failed = leaves_words(process_->group());
    parts.gradient_state = gradient_state_;
    parts.drop_last = options_.drop_last;
  }

  template <class Batch>
  DeviceTransfer<Batch> placement_of() const {
    const c10::Device device = process_->device();
    if (own_.pin_memory && Staging::serves(device))
      return placement<Batch>(std::make_shared<Staging>(device));
    return {.send = [device, non_blocking = own_.non_blocking](const Batch& batch) {
      return comm::send_to_device(batch, device, non_blocking);
    }};
  }

  template <class Batch>
  std::shared_ptr<Dispatcher<Batch>> dispatcher(size_t position,
                                                std::function<std::optional<BaseBatch<Batch>>()> read,
                                                std::function<Batch()> first_rows) const {
    return std::make_shared<Dispatcher<Batch>>(
        typename Dispatcher<Batch>::Options{.group = process_->group(),
                                            .split_batches = own_.split_batches,
                                            .drop_last = options_.drop_last,
                                            .position = position,
                                            .first_rows = std::move(first_rows),
                                            .origin = origin()},
        std::move(read));
  }

  /// A pass in which every step is what rank 0 hands out.
  template <class Batch>
  PipelineStages<Batch> dispatched(std::shared_ptr<Dispatcher<Batch>> dispatcher,
                              std::shared_ptr<void> owner) const {
    PipelineStages<Batch> parts;
    show(parts);
    parts.plan = [dispatcher = std::move(dispatcher), gradient_state = gradient_state_] {
      gradient_state->require_all("the next batch of a loader that is dispatched");
      return dispatcher->next();
    };
    parts.failed = nullptr;  // rank 0 sends its error; closing connections here could overtake it
    parts.last_remainder = LastRemainder::kAlways;
    parts.owner = std::move(owner);
    return parts;
  }

  const torch::data::DataLoaderOptions given_options_;
  const torch::data::FullDataLoaderOptions options_;
  EpochCounter epochs_;
  std::optional<process::Process> process_;
  std::shared_ptr<training::GradientState> gradient_state_;
  LoaderOptions own_;
  bool dispatches_ = false;
};

}  // namespace hasten::data::detail
