// DistributedSampler: each rank's part of the order, as torch.utils.data.DistributedSampler gives it.
//
// For loops that spread the data themselves, as PyTorch's examples do. A loader that an Accelerator prepares
// spreads any sampler over the ranks and refuses this one, which would divide the data twice.
#pragma once

#include <optional>

#include "hasten/data/sampler/detail/traits.h"
#include "hasten/data/sampler/samplers.h"
#include "hasten/process/process.h"

namespace hasten::data {

struct DistributedSamplerOptions {
  /// How many ranks share the samples, and the number of this one. Unset: those of the process or group that the
  /// sampler is made with.
  std::optional<int> num_replicas = {};
  std::optional<int> rank = {};
  bool shuffle = true;
  /// The order is a function of seed + epoch (kTorch) and must be the same on every rank.
  uint64_t seed = 0;
  /// false: the first samples of the order come again until every rank has as many. true: the last ones are
  /// left out instead.
  bool drop_last = false;
  Order order = Order::kTorch;
};

/// Rank r gets the places r, r + num_replicas, r + 2 * num_replicas … of the order. Call set_epoch before
/// each epoch, or let the epochs count themselves.
class DistributedSampler : public SeedableSampler {
 public:
  /// `options` names num_replicas and rank: without them every rank would get all samples.
  /// Throws: UsageError if one of them is not given, or for a rank outside
  /// 0 … num_replicas - 1.
  DistributedSampler(size_t num_indices, const DistributedSamplerOptions& options);
  /// Gives this rank of a process, or of a group, its part.
  DistributedSampler(size_t num_indices, const process::Process& process,
                     const DistributedSamplerOptions& options = {});
  DistributedSampler(size_t num_indices, const comm::Group& group, const DistributedSamplerOptions& options = {});
  size_t size() const noexcept override { return num_samples_; }

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override;

 private:
  size_t num_indices_;
  DistributedSamplerOptions options_;
  size_t num_samples_;
  SeedableRandomSampler order_;
};

template <>
struct gives_a_ranks_part<DistributedSampler> : std::true_type {};

}  // namespace hasten::data
