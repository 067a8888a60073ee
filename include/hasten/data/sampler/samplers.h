// Samplers with a seed (seedable_sampler.h): the order in which an epoch takes the samples of a dataset.
//
// The permutations are permutation.h's, batches of a program's own batch_sampler.h's. Spreading over ranks is the
// loader's, or distributed_sampler.h's, as PyTorch does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/permutation.h"
#include "hasten/data/sampler/seedable_sampler.h"

namespace hasten::data {

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
  /// Throws: UsageError for num_samples of nothing.
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

/// Draws index i as often as its weight demands. kTorch gives the draws of torch.utils.data.WeightedRandomSampler with
/// a generator seeded with seed + epoch (at most 2^24 weights). kKeyed draws each position by itself.
class SeedableWeightedSampler : public SeedableSampler {
 public:
  /// Throws: UsageError for a weight that is negative or no number, or weights that are all
  /// 0; UsageError for more samples than positive weights without replacement, or kKeyed without replacement.
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

/// A random order in which samples of about one length are together, longest first within a group. The longest of all
/// is in the first batch. So padding is little, and the largest step comes at once. It is the order of transformers'
/// LengthGroupedSampler with a generator seeded with seed + epoch. Order kTorch only: the groups are sorted, which
/// takes the whole permutation.
class LengthGroupedSampler : public SeedableSampler {
 public:
  /// Throws: UsageError for batch_size 0 or group_batches 0.
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
