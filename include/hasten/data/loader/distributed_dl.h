// DistributedDL: fastai's form of spreading. Each rank gets one contiguous block of the epoch's order.
//
// The order is filled up from its start to a multiple of the world size and cut into as many equal blocks. Unlike a
// prepared loader (batch_shard.h), ranks do not take turns, so a global step is no slice of the order. Use it if
// fastai's order is required.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/data/loader/loader.h"

namespace hasten::data {

/// Returns the block of `order` that a rank gets: ceil(n / world_size) indices, repeated from the start where n is no
/// multiple of world_size. Follows fastai's DistributedDL.get_idxs.
/// Throws: UsageError for a rank outside the world.
Indices contiguous_block(const Indices& order, int rank, int world_size);

/// One rank's block of another sampler's epoch.
template <class Inner>
class BlockSampler : public torch::data::samplers::Sampler<> {
 public:
  BlockSampler(Inner sampler, size_t num_indices, int rank, int world_size)
      : sampler_(std::move(sampler)), num_indices_(num_indices), rank_(rank), world_size_(world_size) {
    contiguous_block({}, rank, world_size);  // refuses a rank outside the world
  }
  uint64_t seed() const
    requires requires(const Inner& sampler) { sampler.seed(); }
  {
    return sampler_.seed();
  }
  size_t size() const noexcept { return (num_indices_ + world_size_ - 1) / static_cast<size_t>(world_size_); }
  void set_epoch(uint64_t epoch) {
    if constexpr (requires { sampler_.set_epoch(epoch); }) sampler_.set_epoch(epoch);
  }

  void reset(std::optional<size_t> = std::nullopt) override {
    sampler_.reset();
    Indices order;
    while (auto some = sampler_.next(std::max<size_t>(1, num_indices_))) {
      order.insert(order.end(), some->begin(), some->end());
    }
    block_ = contiguous_block(order, rank_, world_size_);
    given_ = 0;
  }

  std::optional<Indices> next(size_t batch_size) override {
    const size_t count = std::min(batch_size, block_.size() - given_);
    if (count == 0) return std::nullopt;
    const auto begin = block_.begin() + static_cast<std::ptrdiff_t>(given_);
    given_ += count;
    return Indices(begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  void save(torch::serialize::OutputArchive& archive) const override { sampler_.save(archive); }
  void load(torch::serialize::InputArchive& archive) override { sampler_.load(archive); }

 private:
  Inner sampler_;
  size_t num_indices_;
  int rank_, world_size_;
  Indices block_;
  size_t given_ = 0;
};

template <class Sampler>
struct gives_a_ranks_part<BlockSampler<Sampler>> : std::true_type {};
template <class Sampler>
struct draws_random_numbers<BlockSampler<Sampler>> : draws_random_numbers<Sampler> {};
template <class Sampler>
struct draws_in_next<BlockSampler<Sampler>> : std::false_type {};

/// A loader over this rank's block of what `loader` gives: `DistributedDL(loader, rank, world_size)`. The
/// dataset, the sampler and the options are copied. It is used as it is, not prepared. For list(range(50)),
/// batch size 12 and 4 ranks, rank r gets (r * 13 … r * 13 + 11) modulo 50, then r * 13 + 12 modulo 50.
template <class Dataset, class Sampler>
class DistributedDL : public Loader<Dataset, BlockSampler<Sampler>> {
  using Base = Loader<Dataset, BlockSampler<Sampler>>;

 public:
  /// All ranks must draw the same order: from a seeded sampler, or from default generators with equal states.
  /// Throws: UsageError for a rank outside the world, or a sampler of unknown size.
  DistributedDL(const Loader<Dataset, Sampler>& loader, int rank, int world_size)
      : Base(loader.dataset(), {loader.sampler(), loader.num_indices(), rank, world_size}, loader.options()) {}
  /// Takes rank 0's order on every rank of the group, as in fastai. Beginning a pass is collective then.
  DistributedDL(const Loader<Dataset, Sampler>& loader, const comm::Group& group)
      : DistributedDL(loader, group.rank(), group.world_size()) {
    this->share_order(group);
  }
  /// The same in the world of a process. Batches are where the dataset makes them: a fit moves them to its device.
  DistributedDL(const Loader<Dataset, Sampler>& loader, const process::Process& process)
      : DistributedDL(loader, process.group()) {}
};

}  // namespace hasten::data
