// SeedableSampler: the interface of samplers with a seed.
//
// Each is a function of (seed, epoch, position). So every rank draws the same without sending anything. set_epoch
// repeats an epoch, and seek resumes a pass without earlier draws. They are torch::data samplers and work in torch's
// own loaders as well.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data {

/// The interface of samplers with a seed. Derive from it for one of your own: size(), at(), and begin_epoch() if an
/// epoch takes preparing. The same seed must be given on every rank.
class SeedableSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit SeedableSampler(uint64_t seed) : seed_(seed) {}

  /// Indices that an epoch gives.
  virtual size_t size() const noexcept = 0;

  uint64_t seed() const noexcept { return seed_; }
  /// Returns the epoch that is being drawn, or that will be first.
  uint64_t epoch() const noexcept { return begun_ ? epoch_ : next_epoch_; }
  /// How many indices of the epoch have been given, or passed over by seek.
  size_t position() const noexcept { return position_; }

  /// The next reset begins this epoch; without it each begins the one after the last.
  void set_epoch(uint64_t epoch) noexcept { next_epoch_ = epoch; }

  /// Returns the index at a position below size() of the running epoch, by itself.
  size_t index_at(size_t position) const { return at(position); }

  /// Makes the next index that at `position` of the running epoch. Begins an epoch if none is running.
  /// Throws: UsageError for a position behind the end.
  void seek(size_t position);

  /// Begins the next epoch. torch's samplers can be given another size here; these have one size.
  /// Throws: UsageError for a `new_size` that is not size().
  void reset(std::optional<size_t> new_size = std::nullopt) override;

  /// Returns the next batch_size indices, fewer at the end, then nothing.
  std::optional<Indices> next(size_t batch_size) override;

  /// Epoch and position under the keys "epoch" and "position", as torch's samplers keep theirs, and whether the epoch
  /// has begun. Throws: the exceptions of the archive; load: UsageError for another seed or
  /// size.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  /// Called once before the indices of an epoch are read.
  virtual void begin_epoch(uint64_t /*epoch*/) {}
  /// Returns the index at a position below size().
  virtual size_t at(size_t position) const = 0;
  void begin_if_needed();

 private:
  uint64_t seed_;
  uint64_t next_epoch_ = 0, epoch_ = 0;
  size_t position_ = 0;
  bool begun_ = false;
};

}  // namespace hasten::data
