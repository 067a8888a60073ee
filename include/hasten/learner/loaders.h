// Loader and Loaders: hasten's loaders without their types, as a Learner takes them.
//
// A Loader makes a fresh loader for an Accelerator when a fit begins, so that the same one serves one process and many.
// The order is the sampler's: shuffled by its seed and the epoch, shared over the ranks as every prepared loader's is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/core/value.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/distributed_dl.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/sampler/samplers.h"
#include "hasten/learner/batch.h"
#include "hasten/learner/loss.h"

namespace hasten::learner {

/// A loader that an Accelerator has prepared; one pass at a time.
class PreparedLoader {
 public:
  virtual ~PreparedLoader() = default;
  /// Batches of a pass on this rank.
  virtual size_t size() const = 0;
  virtual void begin() = 0;
  /// Reads the next batch; false at the end.
  virtual bool next(Batch& batch) = 0;
  virtual void end() noexcept = 0;
  /// The position of the running pass, and going on from there (data::LoaderState as a Value).
  virtual core::Value state() const = 0;
  virtual void load_state(const core::Value& state) = 0;
};

/// How an epoch's order goes to the ranks: in turns as prepared loaders share it, or in contiguous blocks
/// (data::DistributedDL, fastai's way).
enum class LoaderOrder { kTurns, kBlocks };

namespace detail {

core::Value value_of(const data::LoaderState& state);
data::LoaderState state_of(const core::Value& value);

class LoaderSource {
 public:
  virtual ~LoaderSource() = default;
  virtual std::unique_ptr<PreparedLoader> prepare(const Accelerator& accelerator, LoaderOrder order) const = 0;
  virtual std::shared_ptr<const LoaderSource> in_order() const = 0;
  virtual std::optional<size_t> num_samples() const = 0;
  virtual size_t batch_size() const = 0;
  /// Returns a source that leaves out a last batch with fewer samples, if every rank has a whole one before it. Null:
  /// it has no such batch, or gives its batches as they are.
  virtual std::shared_ptr<const LoaderSource> without_short_batch() const { return nullptr; }
};

void move_to(c10::Device device, Batch& batch);

template <class L>
class PreparedLoaderOf final : public PreparedLoader {
 public:
  /// `device`: where batches are moved to; unset: the loader does it.
  PreparedLoaderOf(L loader, BatchOptions options, std::optional<c10::Device> device = {})
      : loader_(std::move(loader)), options_(std::move(options)), device_(device) {}
  size_t size() const override { return loader_.size(); }
  void begin() override {
    end();
    iterator_.emplace(loader_.begin());
    fresh_ = true;
  }
  bool next(Batch& batch) override {
    if (!fresh_) ++*iterator_;
    fresh_ = false;
    if (!(*iterator_ != loader_.end())) return false;
    batch = to_batch(**iterator_, options_);
    if (device_) move_to(*device_, batch);
    return true;
  }
  void end() noexcept override { iterator_.reset(); }
  core::Value state() const override { return value_of(loader_.state()); }
  void load_state(const core::Value& state) override { loader_.load_state(state_of(state)); }

 private:
  L loader_;
  BatchOptions options_;
  std::optional<c10::Device> device_;
  std::optional<typename L::Iterator> iterator_;
  bool fresh_ = false;
};

template <class Dataset, class Sampler>
class LoaderSourceOf final : public LoaderSource {
 public:
  LoaderSourceOf(const data::Loader<Dataset, Sampler>& loader, BatchOptions options)
      : dataset_(loader.dataset()),
        sampler_(loader.sampler()),
        loading_(loader.options()),
        options_(std::move(options)) {}
  LoaderSourceOf(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& loading, BatchOptions options)
      : dataset_(std::move(dataset)), sampler_(std::move(sampler)), loading_(loading), options_(std::move(options)) {}

  std::unique_ptr<PreparedLoader> prepare(const Accelerator& accelerator, LoaderOrder order) const override {
    using L = data::Loader<Dataset, Sampler>;
    auto loading = loading_;
    const size_t round = loading.batch_size() * static_cast<size_t>(accelerator.world_size());
    if (drops_short_batch_ && num_samples().value_or(0) >= round) loading.drop_last(true);
    if constexpr (!data::is_stream_v<Dataset>) {
      if (order == LoaderOrder::kBlocks && accelerator.world_size() > 1) {
        using Blocks = data::DistributedDL<Dataset, Sampler>;
        return std::make_unique<PreparedLoaderOf<Blocks>>(
            Blocks(L(dataset_, sampler_, loading), accelerator.process().group()), options_, accelerator.device());
      }
    }
    return std::make_unique<PreparedLoaderOf<L>>(accelerator.prepare(L(dataset_, sampler_, loading)), options_);
  }
  std::shared_ptr<const LoaderSource> in_order() const override {
    using Ordered = data::SeedableSequentialSampler;
    if constexpr (!data::is_stream_v<Dataset> && !std::is_same_v<Sampler, Ordered>) {
      auto loading = loading_;
      loading.drop_last(false);
      const auto size = num_samples();
      if (size) return std::make_shared<LoaderSourceOf<Dataset, Ordered>>(dataset_, Ordered(*size), loading, options_);
    }
    return std::make_shared<LoaderSourceOf>(*this);
  }
  std::optional<size_t> num_samples() const override { return dataset_.size(); }
  size_t batch_size() const override { return loading_.batch_size(); }
  std::shared_ptr<const LoaderSource> without_short_batch() const override {
    auto source = std::make_shared<LoaderSourceOf>(*this);
    source->drops_short_batch_ = true;
    return source;
  }

 private:
  Dataset dataset_;
  Sampler sampler_;
  torch::data::DataLoaderOptions loading_;
  BatchOptions options_;
  bool drops_short_batch_ = false;
};

/// Batches that lie in memory; rank r of n takes batches r, r + n, …. A seed permutes them anew in each epoch.
std::shared_ptr<const LoaderSource> source_of(std::vector<Batch> batches, std::optional<uint64_t> seed = {});

}  // namespace detail

/// A value handle over a data::loader(…), or over batches in memory. An empty one has no batches.
class Loader {
 public:
  Loader() = default;
  /// The loader's dataset, sampler and options are copied.
  template <class Dataset, class Sampler>
  Loader(const data::Loader<Dataset, Sampler>& loader, BatchOptions options = {})  // NOLINT: implicit
      : source_(std::make_shared<detail::LoaderSourceOf<Dataset, Sampler>>(loader, std::move(options))) {}
  Loader(std::vector<Batch> batches) : source_(detail::source_of(std::move(batches))) {}  // NOLINT: implicit

  explicit operator bool() const noexcept { return source_ != nullptr; }
  /// Throws: as Accelerator::prepare of a loader.
  std::unique_ptr<PreparedLoader> prepare(const Accelerator& accelerator,
                                          LoaderOrder order = LoaderOrder::kTurns) const {
    return source_->prepare(accelerator, order);
  }
  /// Returns the same samples in the dataset's order, none dropped.
  Loader in_order() const {
    Loader result;
    if (source_) result.source_ = source_->in_order();
    return result;
  }
  /// Returns the same without a last batch of fewer samples, which a batch norm could not take. It stays if some rank
  /// would have no batch.
  Loader without_short_batch() const {
    Loader result = *this;
    if (auto source = source_ ? source_->without_short_batch() : nullptr) result.source_ = std::move(source);
    return result;
  }
  /// Samples of the dataset, nothing if unknown.
  std::optional<size_t> num_samples() const { return source_ ? source_->num_samples() : 0; }
  size_t batch_size() const { return source_ ? source_->batch_size() : 0; }

 private:
  friend Loader shuffled(std::vector<Batch> batches, uint64_t seed);

  std::shared_ptr<const detail::LoaderSource> source_;
};
/// Returns a loader over batches in memory, such as text_batches, in an order by (seed, epoch), the same on all ranks.
Loader shuffled(std::vector<Batch> batches, uint64_t seed = 0);

/// Data of a Learner.
struct Loaders {
  Loader train = {};
  /// May be empty: validation then has no batches.
  Loader valid = {};
  /// Names of the classes, for predict and show_results; may be empty.
  std::vector<std::string> vocab = {};
  /// Changes a batch of training, and those of tta: an augmentation. May be empty.
  std::function<Batch(const Batch&)> augment = {};
  /// The loss of a Learner whose LearnerOptions have none; may be empty.
  Loss loss = {};
};

struct TensorLoadersOptions {
  int64_t batch_size = 64;
  bool shuffle = true;
  /// Leaves out a last batch with fewer samples. Unset: as fastai, if samples are shuffled, and if every rank then
  /// still has a batch (Loader::without_short_batch).
  std::optional<bool> drop_last = {};
  uint64_t seed = 0;
};
/// Returns a loader over rows of tensors; shuffled by (seed, epoch) by default.
/// Throws: UsageError for tensors of different first sizes, and for a batch_size below 1.
Loader tensor_loader(const at::Tensor& inputs, const at::Tensor& targets, const TensorLoadersOptions& options = {});
/// Training rows, and validation rows in their order.
/// Throws: as tensor_loader.
Loaders tensor_loaders(const torch::data::Example<>& train, const torch::data::Example<>& valid,
                       const TensorLoadersOptions& options = {});
Loaders tensor_loaders(const data::TensorDataset<2>& train, const data::TensorDataset<2>& valid,
                       const TensorLoadersOptions& options = {});

}  // namespace hasten::learner
