// What all handles of one loader share: dataset, sampler, options, workers and its place among the ranks.
// Use loader.h; this is its inside.
#pragma once

#include <torch/data/dataloader_options.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested_operations.h"
#include "hasten/core/error.h"
#include "hasten/data/batch_shard.h"
#include "hasten/data/fetch.h"
#include "hasten/data/loader_options.h"
#include "hasten/data/pass.h"
#include "hasten/data/place.h"
#include "hasten/data/sampler_stream.h"
#include "hasten/data/traits.h"
#include "hasten/state/process.h"

namespace hasten::data {

namespace detail {

/// Refuses what a world of several cannot do with these options, and what no loader can do.
void check_loader_options(const torch::data::FullDataLoaderOptions& options);
struct LoaderFacts {
  size_t batch_size;
  bool sampler_spreads_itself;
  bool can_be_placed;
};
void check_prepare(const state::Process& process, const LoaderOptions& own, const LoaderFacts& facts);
[[noreturn]] void throw_prepared_twice(const Origin& origin);
[[noreturn]] void throw_unknown_size(const Origin& origin);

template <class Dataset, class Sampler>
class LoaderCore : public std::enable_shared_from_this<LoaderCore<Dataset, Sampler>> {
  static_assert(!Dataset::is_stateful &&
                    std::is_constructible_v<typename Dataset::BatchRequestType, Indices&>,
                "data::loader takes map datasets, asked by positions (ArrayRef<size_t>)");
  static_assert(std::is_same_v<typename Sampler::BatchRequestType, Indices>,
                "data::loader takes samplers that give positions (std::vector<size_t>)");
  static constexpr bool kSpreadsItself =
      std::is_base_of_v<torch::data::samplers::DistributedSampler<Indices>, Sampler>;

 public:
  using Batch = typename Dataset::BatchType;

  LoaderCore(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : dataset_(std::move(dataset)),
        sampler_(std::move(sampler)),
        options_(options),
        dataset_length_(std::as_const(dataset_).size()),
        stream_(comm::Group()) {
    check_loader_options(options_);
  }

  void prepare(const state::Process& process, std::shared_ptr<state::GradientState> gradient_state,
               const LoaderOptions& own) {
    if (prepared() && gradient_state == gradient_state_) return;
    if (prepared()) throw_prepared_twice(origin());
    check_prepare(process, own, {options_.batch_size, kSpreadsItself, can_be_placed<Batch>});
    process_ = process;
    gradient_state_ = std::move(gradient_state);
    own_ = own;
    stream_ = SamplerStream(process.group());
  }

  bool prepared() const noexcept { return process_.has_value(); }
  std::optional<size_t> dataset_length() const noexcept { return dataset_length_; }
  size_t epochs_begun() const noexcept { return epochs_begun_; }
  Sampler& sampler() noexcept { return sampler_; }
  size_t total_batch_size() const noexcept {
    return options_.batch_size * (own_.split_batches ? 1 : static_cast<size_t>(shard().world_size));
  }

  size_t size(size_t skip) const {
    const auto length = sampler_size(sampler_, dataset_length_);
    if (!length) throw_unknown_size(origin());
    const size_t full = *length / options_.batch_size, rest = *length % options_.batch_size;
    const size_t num_batches = full + (rest > 0 && !options_.drop_last ? 1 : 0);
    const size_t size = shard_length(num_batches, num_batches > full ? rest : options_.batch_size, shard());
    return size > skip ? size - skip : 0;
  }

  std::shared_ptr<Pass<Batch>> begin(size_t skip) {
    if (const auto older = pass_.lock()) older->supersede();
    start_workers();
    if constexpr (draws_random_numbers<Sampler>::value) stream_.begin_epoch();
    draw<draws_random_numbers<Sampler>::value>([this] { sampler_.reset(); });
    ++epochs_begun_;
    auto pass = std::make_shared<Pass<Batch>>(parts(skip));
    pass_ = pass;
    pass->advance();
    return pass;
  }

 private:
  Origin origin() const {
    return process_ ? Origin{"data", process_->rank(), process_->world_size()} : Origin{"data"};
  }

  /// A world of one gives the sampler's batches as they are.
  BatchShardOptions shard() const {
    BatchShardOptions result{.batch_size = options_.batch_size, .even_batches = false};
    if (!process_ || process_->world_size() == 1) return result;
    result.rank = process_->rank();
    result.world_size = process_->world_size();
    result.split_batches = own_.split_batches;
    result.even_batches = own_.even_batches;
    result.drop_last = options_.drop_last;
    return result;
  }

  template <bool kMayDraw, class Fn>
  void draw(Fn&& fn) {
    if constexpr (kMayDraw) {
      stream_.run(fn);
    } else {
      fn();
    }
  }

  /// The next global batch, as torch's loader asks for it.
  std::optional<Indices> next_global() {
    std::optional<Indices> indices;
    draw<draws_in_next<Sampler>::value>([&] { indices = sampler_.next(options_.batch_size); });
    if (indices && indices->size() < options_.batch_size && options_.drop_last) indices.reset();
    return indices;
  }

  void start_workers() {
    if (options_.workers == 0 || workers_) return;
    for (size_t worker = 1; worker < options_.workers && !is_thread_safe<Dataset>::value; ++worker) {
      copies_.push_back(copy());
    }
    workers_ = std::make_unique<WorkerPool>(options_.workers);
  }

  std::unique_ptr<Dataset> copy() const {
    if constexpr (std::is_copy_constructible_v<Dataset>) {
      return std::make_unique<Dataset>(dataset_);
    } else {
      static_assert(is_thread_safe<Dataset>::value, "a dataset that is not thread-safe must be copyable");
      return nullptr;
    }
  }

  PassParts<Batch> parts(size_t skip) {
    PassParts<Batch> parts;
    parts.owner = this->shared_from_this();
    parts.origin = origin();
    parts.plan = [skip, shard = BatchShard(shard(), [this] { return next_global(); })]() mutable {
      for (; skip > 0 && shard.next(); --skip) {
      }
      return shard.next();
    };
    parts.fetch = [this, origin = parts.origin](size_t worker, const Indices& indices) {
      Dataset& dataset = worker == 0 || copies_.empty() ? dataset_ : *copies_[worker - 1];
      return data::fetch(dataset, indices, origin);
    };
    if constexpr (can_be_placed<Batch>) {
      if (process_ && own_.put_on_device && !process_->device().is_cpu()) {
        parts.place = [device = process_->device(), non_blocking = own_.non_blocking](const Batch& batch) {
          return comm::send_to_device(batch, device, non_blocking);
        };
      }
    }
    parts.workers = workers_.get();
    parts.max_jobs = options_.max_jobs;
    parts.enforce_ordering = options_.enforce_ordering;
    parts.timeout = options_.timeout;
    parts.gradient_state = gradient_state_;
    parts.total_batch_size = total_batch_size();
    parts.drop_last = options_.drop_last;
    const auto length = sampler_size(sampler_, dataset_length_);
    if (length && !options_.drop_last) parts.remainder = static_cast<int64_t>(*length % total_batch_size());
    return parts;
  }

  Dataset dataset_;
  Sampler sampler_;
  const torch::data::FullDataLoaderOptions options_;
  const std::optional<size_t> dataset_length_;
  std::optional<state::Process> process_;
  std::shared_ptr<state::GradientState> gradient_state_;
  LoaderOptions own_;
  SamplerStream stream_;
  size_t epochs_begun_ = 0;
  std::weak_ptr<Pass<Batch>> pass_;
  std::vector<std::unique_ptr<Dataset>> copies_;
  std::unique_ptr<WorkerPool> workers_;  // last: its threads end before what they use
};

}  // namespace detail

}  // namespace hasten::data
