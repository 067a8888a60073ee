// The shared part of all handles of one loader over a stream: torch::data's datasets that return "the next n samples"
// (stream, stateful and chunk datasets). Use loader.h; this is its inside.
//
// Unless rank 0 dispatches, every rank reads the whole stream and keeps its part. The rules are those of datasets with
// positions (batch_shard.h over the places in the stream). A stream has one place, so one thread at most reads ahead,
// and the order never depends on workers.
#pragma once

#include <torch/data/samplers/stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/loader/detail/loader_impl.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data {

/// Replaces the sampler of a loader over a dataset with positions: the stream itself decides the order.
struct Streaming {};

namespace detail {

class ReadAhead;

/// The stream of a loader, whatever its type, and torch's StreamSampler if that says how long an epoch is.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  virtual std::optional<size_t> size() const = 0;
  virtual bool seekable() const noexcept = 0;
  virtual void set_epoch(uint64_t epoch) = 0;
  virtual void rewind() = 0;
  /// Only for streams that can seek: what comes next is at `position`, and was at `from`.
  virtual void seek(size_t position, size_t from) = 0;
  /// Returns the next batch, null at the end. Empty batches are passed over. If a stream has no other end, the first
  /// empty batch is the end.
  virtual AnyBatch read(size_t batch_size) = 0;
};

template <class Dataset, class Sampler>
class StreamOf final : public StreamSource {
  static constexpr bool kCounted = std::is_same_v<Sampler, torch::data::samplers::StreamSampler>;
  static_assert(kCounted || std::is_same_v<Sampler, Streaming>,
                "a stream takes no sampler but torch's StreamSampler, which says how long an epoch is");

 public:
  using Batch = typename stream_batch<typename Dataset::BatchType>::type;

  StreamOf(Dataset dataset, Sampler sampler) : dataset_(std::move(dataset)), sampler_(std::move(sampler)) {}
  const Dataset& dataset() const noexcept { return dataset_; }
  Sampler& sampler() noexcept { return sampler_; }

  std::optional<size_t> size() const override { return dataset_.size(); }
  bool seekable() const noexcept override { return can_seek<Dataset>::value; }
  void set_epoch(uint64_t epoch) override { set_epoch_of(dataset_, epoch); }
  void rewind() override {
    if constexpr (Dataset::is_stateful) dataset_.reset();
    if constexpr (kCounted) sampler_.reset();
  }
  void seek(size_t position, size_t from) override {
    if constexpr (can_seek<Dataset>::value) seek_in(dataset_, position);
    if constexpr (kCounted) sampler_.next(position - from);
  }
  AnyBatch read(size_t batch_size) override {
    for (std::optional<Batch> batch;; batch.reset()) {
      if constexpr (kCounted) {
        if (auto request = sampler_.next(batch_size)) batch = dataset_.get_batch(request->size());
      } else {
        batch = dataset_.get_batch(batch_size);
      }
      if (!batch) return nullptr;
      if constexpr (has_rows<Batch>) {
        if (num_rows(*batch) == 0) {
          if constexpr (!kCounted && std::is_same_v<Batch, typename Dataset::BatchType>) return nullptr;
          continue;
        }
      }
      return any_batch(*std::move(batch));
    }
  }

 private:
  Dataset dataset_;
  Sampler sampler_;
};

class StreamLoader : public LoaderImpl, public std::enable_shared_from_this<StreamLoader> {
 public:
  /// `facts`: those of the type of the stream.
  StreamLoader(const torch::data::DataLoaderOptions& options, const BatchOperations& operations, LoaderFacts facts,
               std::unique_ptr<StreamSource> stream);
  ~StreamLoader();

  /// Loader's functions of these names.
  void prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
               const LoaderOptions& own);
  std::optional<size_t> dataset_length() const noexcept { return dataset_length_; }
  size_t total_batch_size() const noexcept { return options_.batch_size * (splits() ? 1 : world_size()); }
  size_t num_indices() const;
  size_t size(size_t skip) const;
  std::shared_ptr<EpochPipeline> begin(size_t skip);
  LoaderState state() const;
  void load_state(const LoaderState& state);

 protected:
  StreamSource& stream() const noexcept { return *stream_; }

 private:
  struct Places;
  void rewind();
  void jump(Places& places, size_t position);
  void start_reader();
  size_t rows_of(const AnyBatch& batch) const;
  AnyBatch read(Places& places);
  AnyBatch next_batch(Places& places);
  std::optional<Indices> next_places(Places& places);
  std::optional<BaseBatch> next_counted(Places& places);
  std::vector<Indices> go_to(Places& places, size_t position, size_t round, std::deque<Indices>& rest);
  std::function<AnyBatch()> jump_behind_first_rows(Places& places, size_t position);
  PipelineStages sharded_stages(size_t skip, size_t position);
  PipelineStages dispatched_stages(size_t skip, size_t position);

  const LoaderFacts facts_;
  const std::unique_ptr<StreamSource> stream_;
  const std::optional<size_t> dataset_length_;
  std::weak_ptr<EpochPipeline> pass_;
  std::unique_ptr<ReadAhead> reader_;  // last: its thread ends before what it uses
};

/// Adds the types of stream and sampler.
template <class Dataset, class Sampler>
class StreamLoaderImpl : public StreamLoader {
  using Stream = StreamOf<Dataset, Sampler>;

 public:
  using Batch = typename Stream::Batch;

  StreamLoaderImpl(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : StreamLoader(options, batch_operations<Batch, true, can_be_dispatched<Batch>>(),
                     {.can_be_placed = can_be_placed<Batch>,
                      .can_be_dispatched = can_be_dispatched<Batch>,
                      .has_rows = has_rows<Batch>,
                      .is_stream = true},
                     std::make_unique<Stream>(std::move(dataset), std::move(sampler))) {}

  const Dataset& dataset() const noexcept { return static_cast<const Stream&>(stream()).dataset(); }
  Sampler& sampler() noexcept { return static_cast<Stream&>(stream()).sampler(); }
};

}  // namespace detail

}  // namespace hasten::data
