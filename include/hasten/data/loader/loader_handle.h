// Loader: batches of a dataset for a training loop, spread over the ranks once it is prepared. loader.h makes
// one.
//
// Which rank gets what is batch_shard.h's, one pass over the data epoch_pipeline.h's, agreeing on
// random order sampler_stream.h's. docs/data.md explains the options.
#pragma once

#include <torch/data/dataloader_options.h>

#include <memory>
#include <optional>
#include <utility>

#include "hasten/data/loader/detail/epoch_pipeline.h"
#include "hasten/data/loader/detail/map_loader.h"
#include "hasten/data/loader/detail/stream_loader.h"
#include "hasten/data/loader/loader_options.h"
#include "hasten/data/sampler/detail/traits.h"
#include "hasten/process/process.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data {

namespace detail {
template <class Dataset, class Sampler>
struct core_of {
  using type = MapLoaderImpl<Dataset, Sampler>;
};
template <class Dataset, class Sampler>
  requires is_stream_v<Dataset>
struct core_of<Dataset, Sampler> {
  using type = StreamLoaderImpl<Dataset, Sampler>;
};
}  // namespace detail

/// A loader over a map dataset in the order of a sampler, or over a stream. A map dataset is anything with
/// torch::data's BatchDataset interface and positions as requests. A sampler is anything with torch::data's Sampler
/// interface. Requests of a stream are numbers of samples. The "sampler" is Streaming, or torch's StreamSampler for
/// streams without end. A handle: copies are the same loader.
///
/// `for (auto& batch : loader)` is an epoch, and another loop is the next epoch. There is a single pass at a time: a
/// newer begin() ends the older pass. Leaving a loop early is fine. Iterate from one thread.
template <class Dataset, class Sampler = torch::data::samplers::RandomSampler>
class Loader {
  using Core = typename detail::core_of<Dataset, Sampler>::type;

 public:
  using DatasetType = Dataset;
  using SamplerType = Sampler;
  using Batch = typename Core::Batch;
  using Iterator = PassIterator<Batch>;

  /// Throws: UsageError for batch_size 0, or max_jobs 0 with workers.
  Loader(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : core_(std::make_shared<Core>(std::move(dataset), std::move(sampler), options)) {}
  // Moves copy: a handle that was moved from is one still.
  Loader(const Loader&) = default;
  Loader& operator=(const Loader&) = default;

  /// Spreads the loader over the ranks of `process`, and gives the position of its loops to `gradient_state`. Until
  /// then the loader is a world of one. Accelerator::prepare calls this. Preparing again for the same gradient state
  /// does nothing. Must not be called inside a loop over the loader.
  /// Throws: UsageError for split_batches with a batch size that world_size does not
  /// divide, or a sampler of torch's that spreads over ranks itself; UsageError for use_stateful_dataloader with
  /// enforce_ordering = false, or a loader prepared for another Accelerator.
  Loader& prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
                  const LoaderOptions& options = {}) {
    core_->prepare(process, std::move(gradient_state), options);
    return *this;
  }
  bool prepared() const noexcept { return core_->prepared(); }

  /// Begins an epoch and fetches its first batch.
  /// Collective: yes, where there are several ranks and the sampler draws random numbers. Blocks: for rank
  /// 0, and for the first batch. Throws: CommError, and as detail::EpochPipeline::advance.
  Iterator begin() const { return Iterator(core_->begin(skip_)); }
  Iterator end() const { return Iterator(); }

  /// Batches that a pass gives to this rank.
  /// Throws: UsageError if neither sampler nor dataset has a known size.
  size_t size() const { return core_->size(skip_); }

  /// Samples of a full step of all ranks together: batch_size * world_size, or batch_size with split_batches.
  size_t total_batch_size() const noexcept { return core_->total_batch_size(); }
  /// Samples of the dataset, nothing if unknown.
  std::optional<size_t> total_dataset_length() const noexcept { return core_->dataset_length(); }
  /// Passes begun so far.
  size_t epochs_begun() const noexcept { return core_->epochs().begun(); }
  /// For settings of an own sampler (its weights); change it between passes, alike on every rank.
  Sampler& sampler() const noexcept { return core_->sampler(); }
  const Dataset& dataset() const noexcept { return core_->dataset(); }
  const torch::data::DataLoaderOptions& options() const noexcept { return core_->options(); }
  /// Indices that an epoch of the sampler gives.
  /// Throws: UsageError if neither sampler nor dataset has a known size.
  size_t num_indices() const { return core_->num_indices(); }

  /// Makes the next pass this epoch, from its start, or from the position of a state of this epoch that was just
  /// loaded. Without it each pass is the epoch after the last. Samplers and datasets that have `set_epoch` themselves
  /// get it, too.
  void set_epoch(uint64_t epoch) const { core_->epochs().set_epoch(epoch); }

  /// Where the loop is: everything up to the batch in the caller's hands counts as received, what workers
  /// have fetched ahead does not. After a break it is where the loop was left, after a loop's end the start
  /// of the next epoch. Equal on all ranks as long as all get a batch (keep rank 0's).
  /// Throws: UsageError with enforce_ordering = false.
  LoaderState state() const { return core_->state(); }

  /// Makes the next pass go on from there, without reading earlier samples. The passes after it are whole. Any number
  /// of workers and processes may go on. size() stays that of a whole pass.
  /// Collective: no, but to be called alike on every rank. Throws: UsageError for a state of another
  /// dataset or sampler (num_samples or seed differ).
  void load_state(const LoaderState& state) const { core_->load_state(state); }

  /// state and load_state by the names of the peer's stateful loaders
  /// (LoaderOptions::use_stateful_dataloader).
  LoaderState state_dict() const { return state(); }
  void load_state_dict(const LoaderState& state) const { load_state(state); }

  /// Returns the same loader, but without the first `num_batches` batches of this rank; see skip_first_batches.
  Loader skipping(size_t num_batches) const {
    Loader result(*this);
    result.skip_ += num_batches;
    return result;
  }

  /// Returns the state that the handles share, which has state() and load_state(). It is for a registry that holds it
  /// weakly.
  const std::shared_ptr<Core>& core() const noexcept { return core_; }

 protected:
  /// All ranks of the group draw rank 0's order, though each gives all that it draws.
  void share_order(const comm::Group& group) { core_->share_order(group); }

 private:
  std::shared_ptr<Core> core_;
  size_t skip_ = 0;
};

template <class T>
struct is_loader : std::false_type {};
template <class Dataset, class Sampler>
struct is_loader<Loader<Dataset, Sampler>> : std::true_type {};
/// Whether T (references and const left aside) is a Loader.
template <class T>
inline constexpr bool is_loader_v = is_loader<std::remove_cvref_t<T>>::value;

}  // namespace hasten::data
