// The shared part of all handles of one loader over a map dataset: dataset, sampler, workers. Use loader.h; this is its
// inside. loader_impl.h has the part of every kind of loader, stream_loader.h that of streams.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/loader/detail/fetch.h"
#include "hasten/data/loader/detail/loader_impl.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/detail/any_sampler.h"
#include "hasten/data/sampler/detail/index_source.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data::detail {

/// The dataset of a loader, whatever its type, with a copy for each worker where they cannot share one.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::optional<size_t> size() const = 0;
  /// Makes the copies that `num_workers` need.
  virtual void copy_for(size_t num_workers) = 0;
  /// data::fetch with a worker's dataset.
  virtual AnyBatch fetch(size_t worker, const Indices& indices, const Origin& origin) = 0;
  virtual bool takes_epoch() const noexcept = 0;
  virtual void set_epoch(uint64_t epoch) = 0;
};

template <class Dataset>
class SamplesOf final : public SampleSource {
 public:
  explicit SamplesOf(Dataset dataset) : dataset_(std::move(dataset)) {}
  const Dataset& dataset() const noexcept { return dataset_; }
  std::optional<size_t> size() const override { return dataset_.size(); }

  void copy_for(size_t num_workers) override {
    if constexpr (is_thread_safe<Dataset>::value) {
      (void)num_workers;
    } else {
      static_assert(std::is_copy_constructible_v<Dataset>, "a dataset that is not thread-safe must be copyable");
      for (size_t worker = 1; worker < num_workers; ++worker) copies_.push_back(std::make_unique<Dataset>(dataset_));
    }
  }
  AnyBatch fetch(size_t worker, const Indices& indices, const Origin& origin) override {
    Dataset& dataset = worker == 0 || copies_.empty() ? dataset_ : *copies_[worker - 1];
    return any_batch(data::fetch(dataset, indices, origin));
  }
  bool takes_epoch() const noexcept override { return data::takes_epoch<Dataset>::value; }
  void set_epoch(uint64_t epoch) override {
    set_epoch_of(dataset_, epoch);
    for (auto& copy : copies_) set_epoch_of(*copy, epoch);
  }

 private:
  Dataset dataset_;
  std::vector<std::unique_ptr<Dataset>> copies_;
};

class MapLoader : public LoaderImpl, public std::enable_shared_from_this<MapLoader> {
 public:
  /// `facts`: those of the types of dataset and sampler.
  MapLoader(const torch::data::DataLoaderOptions& options, const BatchOperations& operations, LoaderFacts facts,
            std::unique_ptr<SampleSource> samples, std::unique_ptr<AnySampler> sampler);
  ~MapLoader();

  /// Loader's functions of these names.
  void prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
               const LoaderOptions& own);
  void share_order(const comm::Group& group) { source_.share(group); }
  std::optional<size_t> dataset_length() const noexcept { return dataset_length_; }
  size_t total_batch_size() const noexcept;
  size_t num_indices() const;
  size_t size(size_t skip) const;
  std::shared_ptr<EpochPipeline> begin(size_t skip);
  LoaderState state() const;
  void load_state(const LoaderState& state);

 protected:
  const SampleSource& samples() const noexcept { return *samples_; }
  AnySampler& any_sampler() noexcept { return source_.sampler(); }

 private:
  size_t batch_size_or_largest() const noexcept;
  size_t whole_size() const;
  void start_workers();
  void set_epoch(uint64_t epoch);
  PipelineStages reading(const BatchShardOptions& shard, size_t skip, const EpochStart& start);
  PipelineStages sharded_stages(size_t skip, const EpochStart& start);
  PipelineStages dispatched_stages(size_t skip, const EpochStart& start);
  Indices first_indices(const EpochStart& start) const;

  const LoaderFacts facts_;
  const std::unique_ptr<SampleSource> samples_;
  const std::optional<size_t> dataset_length_;
  IndexSource source_;
  std::weak_ptr<EpochPipeline> pass_;
  std::unique_ptr<WorkerPool> workers_;  // last: its threads end before what they use
};

/// Adds the types of dataset and sampler.
template <class Dataset, class Sampler>
class MapLoaderImpl : public MapLoader {
  static_assert(!Dataset::is_stateful && std::is_constructible_v<typename Dataset::BatchRequestType, Indices&>,
                "data::loader with a sampler takes map datasets, asked by positions (ArrayRef<size_t>)");
  static_assert(std::is_same_v<typename Sampler::BatchRequestType, Indices>,
                "data::loader takes samplers that give positions (std::vector<size_t>)");

 public:
  using Batch = typename Dataset::BatchType;

  MapLoaderImpl(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : MapLoader(options, batch_operations<Batch, kDispatchable, kDispatchable>(),
                  {.sampler_spreads_itself = gives_a_ranks_part<Sampler>::value,
                   .can_be_placed = can_be_placed<Batch>,
                   .can_be_dispatched = kDispatchable},
                  std::make_unique<SamplesOf<Dataset>>(std::move(dataset)),
                  std::make_unique<SamplerOf<Sampler>>(std::move(sampler))) {}

  const Dataset& dataset() const noexcept { return static_cast<const SamplesOf<Dataset>&>(samples()).dataset(); }
  Sampler& sampler() noexcept { return static_cast<SamplerOf<Sampler>&>(any_sampler()).sampler(); }

 private:
  static constexpr bool kDispatchable = can_be_dispatched<Batch> && std::is_copy_constructible_v<Sampler>;
};

}  // namespace hasten::data::detail
