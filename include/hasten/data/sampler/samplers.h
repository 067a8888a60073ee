// Samplers with a seed: in which order an epoch takes the samples of a dataset.
//
// Each is a function of (seed, epoch, position), so every rank draws the same without sending anything, an
// epoch can be repeated by set_epoch, and a pass is resumed by seek without drawing what came before. They
// are torch::data samplers and work in torch's own loaders as well. The permutations are permutation.h's; batches
// of one's own batch_sampler.h's; spreading over ranks is the loader's (or distributed_sampler.h's, as
// PyTorch does it).
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/permutation.h"

namespace hasten::data {

/// The interface of samplers with a seed; derive from it for one of your own: size(), at(), and begin_epoch()
/// if an epoch takes preparing. The same seed must be given on every rank.
class SeedableSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit SeedableSampler(uint64_t seed) : seed_(seed) {}

  /// Indices that an epoch gives.
  virtual size_t size() const noexcept = 0;

  uint64_t seed() const noexcept { return seed_; }
  /// The epoch that is being drawn, or that will be first.
  uint64_t epoch() const noexcept { return begun_ ? epoch_ : next_epoch_; }
  /// How many indices of the epoch have been given, or passed over by seek.
  size_t position() const noexcept { return position_; }

  /// The next reset begins this epoch; without it each begins the one after the last.
  void set_epoch(uint64_t epoch) noexcept { next_epoch_ = epoch; }

  /// The index at a position below size() of the running epoch, by itself.
  /// Collective: no. Blocks: no. Throws: nothing.
  size_t index_at(size_t position) const { return at(position); }

  /// The next index is that at `position` of the running epoch; begins an epoch if none is running.
  /// Collective: no. Blocks: no. Throws: UsageError for a position behind the end.
  void seek(size_t position);

  /// Begins the next epoch. torch's samplers can be given another size here; these have one size.
  /// Collective: no. Blocks: no. Throws: UsageError for a `new_size` that is not size().
  void reset(std::optional<size_t> new_size = std::nullopt) override;

  /// The next batch_size indices, fewer at the end, then nothing.
  /// Collective: no. Blocks: no. Throws: nothing.
  std::optional<Indices> next(size_t batch_size) override;

  /// Epoch and position under the keys "epoch" and "position", as torch's samplers keep theirs, and whether
  /// the epoch has begun. Collective: no. Blocks: no. Throws: what the archive throws; load: UsageError for
  /// another seed or size.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  /// Called once before the indices of an epoch are asked for.
  virtual void begin_epoch(uint64_t /*epoch*/) {}
  /// The index at a position below size().
  virtual size_t at(size_t position) const = 0;
  void begin_if_needed();

 private:
  uint64_t seed_;
  uint64_t next_epoch_ = 0, epoch_ = 0;
  size_t position_ = 0;
  bool begun_ = false;
};

/// 0 … size - 1, in this order; as torch's, and resumed in O(1).
class SeedableSequentialSampler : public SeedableSampler {
 public:
  explicit SeedableSequentialSampler(size_t size) : SeedableSampler(0), size_(size) {}
  size_t size() const noexcept override { return size_; }

 protected:
  size_t at(size_t position) const override { return position; }

 private:
  size_t size_;
};

struct RandomSamplerOptions {
  uint64_t seed = 0;
  Order order = Order::kTorch;
  /// true: each index is drawn from all, so that some come twice and some not at all.
  bool replacement = false;
  /// Indices per epoch; unset: as many as there are samples. Above that, without replacement, one permutation
  /// follows another.
  std::optional<size_t> num_samples = {};
};

/// A new random order in each epoch. kTorch gives what accelerate's SeedableRandomSampler gives for the same
/// data_seed and epoch.
class SeedableRandomSampler : public SeedableSampler {
 public:
  /// Collective: no. Blocks: no. Throws: UsageError for num_samples of nothing.
  explicit SeedableRandomSampler(size_t num_indices, const RandomSamplerOptions& options = {});
  size_t size() const noexcept override { return num_samples_; }

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override;

 private:
  size_t num_indices_;
  RandomSamplerOptions options_;
  size_t num_samples_;
  Indices drawn_;                        // kTorch
  std::vector<KeyedPermutation> keyed_;  // kKeyed without replacement: one for each time through
};

struct WeightedSamplerOptions {
  uint64_t seed = 0;
  /// kKeyed needs replacement.
  Order order = Order::kTorch;
  bool replacement = true;
  /// Indices per epoch; unset: as many as there are weights.
  std::optional<size_t> num_samples = {};
};

/// Index i as often as its weight says. kTorch gives what torch.utils.data.WeightedRandomSampler gives with a
/// generator seeded with seed + epoch (at most 2^24 weights); kKeyed draws each position by itself.
class SeedableWeightedSampler : public SeedableSampler {
 public:
  /// Collective: no. Blocks: no. Throws: UsageError for a weight that is negative or no number, weights that
  /// are all 0, more samples than positive weights without replacement, or kKeyed without replacement.
  explicit SeedableWeightedSampler(std::vector<double> weights, const WeightedSamplerOptions& options = {});
  size_t size() const noexcept override { return num_samples_; }

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override;

 private:
  std::vector<double> weights_;  // kKeyed: their running sums
  WeightedSamplerOptions options_;
  size_t num_samples_;
  Indices drawn_;
};

struct SubsetSamplerOptions {
  uint64_t seed = 0;
  Order order = Order::kTorch;
  bool shuffle = true;
};

/// The given indices only. With shuffle and kTorch as torch.utils.data.SubsetRandomSampler with a generator
/// seeded with seed + epoch.
class SeedableSubsetSampler : public SeedableSampler {
 public:
  explicit SeedableSubsetSampler(Indices indices, const SubsetSamplerOptions& options = {});
  size_t size() const noexcept override { return indices_.size(); }

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override;

 private:
  Indices indices_;
  SubsetSamplerOptions options_;
  SeedableRandomSampler order_;
};

struct LengthGroupedOptions {
  uint64_t seed = 0;
  /// Samples of one step; groups hold `group_batches` of them.
  size_t batch_size = 1;
  /// Batches that are sorted together. Unset: 50, or a quarter of what there is if that is less, at least 1.
  std::optional<size_t> group_batches = {};
};

/// A random order in which samples of about one length stand together, longest first within a group and the
/// longest of all in the first batch, so that padding is little and the largest step comes at once. Gives
/// what transformers' LengthGroupedSampler gives with a generator seeded with seed + epoch. Order kTorch
/// only: the groups are sorted, which takes the whole permutation.
class LengthGroupedSampler : public SeedableSampler {
 public:
  /// Collective: no. Blocks: no. Throws: UsageError for batch_size 0 or group_batches 0.
  explicit LengthGroupedSampler(std::vector<size_t> lengths, const LengthGroupedOptions& options);
  size_t size() const noexcept override { return lengths_.size(); }

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override { return drawn_[position]; }

 private:
  std::vector<size_t> lengths_;
  size_t group_size_;
  Indices drawn_;
};

}  // namespace hasten::data
