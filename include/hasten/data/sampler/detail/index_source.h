// The global order of one loader, batch by batch: a sampler, the random numbers it draws, and the way to a position in
// mid-epoch. Samplers that can seek are put there at once. Others draw again all earlier numbers.
//
// Used by map_loader.h, which spreads the batches over the ranks (batch_shard.h); not for use by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/detail/any_sampler.h"
#include "hasten/data/sampler/detail/sampler_stream.h"
#include "hasten/data/sampler/samplers.h"

namespace hasten::data::detail {

/// Where a pass begins.
struct EpochStart {
  uint64_t epoch = 0;
  size_t position = 0;
  /// LoaderState::generator of a pass that goes on.
  std::vector<uint8_t> generator = {};
};

class IndexSource {
 public:
  IndexSource(std::unique_ptr<AnySampler> sampler, size_t batch_size, bool drop_last,
              std::optional<size_t> dataset_length);
  IndexSource(IndexSource&&) = default;

  /// Returns the same order with a copy of the sampler. Throws: InternalError for a sampler that cannot be copied.
  IndexSource copy() const;
  AnySampler& sampler() noexcept { return *sampler_; }
  const AnySampler& sampler() const noexcept { return *sampler_; }

  /// From now on all ranks of the group draw rank 0's numbers.
  void share(const comm::Group& group) { stream_ = SamplerStream(group); }

  /// Replaces torch's RandomSampler by a seeded one of the same order as accelerate's. Other samplers stay. Without a
  /// seed it is that of rank 0's default generator.
  void use_seedable(std::optional<uint64_t> seed);

  /// Leaves a short last batch out from the next pass on.
  void drop_last() { drop_last_ = true; }

  /// Returns true if what is drawn depends on the default generator.
  bool draws() const noexcept { return traits_.draws && !replace_; }
  /// Returns true if the ranks have something to share when an epoch begins.
  bool shares() const noexcept { return draws() || (replace_ && !seedable_); }
  /// Returns true if a position is reached without drawing what comes before.
  bool seekable() const noexcept { return traits_.seekable || replace_; }

  /// Returns the sampler's seed, nothing if it has none or if it is not known before the first pass.
  std::optional<uint64_t> seed() const;
  void adopt_seed(std::optional<uint64_t> seed);
  /// Indices per epoch, if known.
  std::optional<size_t> size() const { return sampler_->size(dataset_length_); }
  /// Samples of a full batch; nothing for a sampler whose batches are of any size.
  std::optional<size_t> batch_size() const;
  /// LoaderState::generator of this epoch.
  std::vector<uint8_t> generator() const { return draws() ? stream_.start() : std::vector<uint8_t>(); }

  /// Begins an epoch. If it begins behind its start, gives the first `round` batches, which fill up the end.
  std::vector<Indices> begin(const EpochStart& start, size_t round);

  /// Returns the next global batch; nothing at the end. The short last batch is left out with drop_last.
  std::optional<Indices> next();

 private:
  IndexSource(const IndexSource&) = default;
  void make_seedable(uint64_t seed);
  std::optional<Indices> draw_some(size_t count);
  std::optional<Indices> next_whole();
  std::vector<Indices> begin_at(const EpochStart& start, size_t round);
  std::vector<Indices> draw_again(size_t position, size_t round);
  std::optional<Indices> next_recut();

  std::shared_ptr<AnySampler> sampler_;
  SamplerTraits traits_;
  size_t batch_size_;
  bool drop_last_;
  std::optional<size_t> dataset_length_;
  SamplerStream stream_;
  bool replace_ = false;
  std::optional<SeedableRandomSampler> seedable_;
  std::deque<Indices> queue_;
  std::optional<std::deque<size_t>> recut_;
};

}  // namespace hasten::data::detail
