// BatchSampler: batches of one's own making instead of "the next batch_size indices".
//
// Serves the uses of torch.utils.data's batch_sampler argument: batches by length, by class, of several sizes. A loader
// gives them as they are, and its own batch size has no effect then.
#pragma once

#include <optional>
#include <vector>

#include "hasten/data/sampler/samplers.h"

namespace hasten::data {

struct BatchSamplerOptions {
  uint64_t seed = 0;
  /// Draws the order of the batches anew in each epoch. The content of a batch stays together, in its order.
  bool shuffle = false;
  Order order = Order::kTorch;
  /// Samples of a full batch, so that a smaller last one can be filled up for all ranks, and so that split_batches
  /// works. If it is unset, batches are of any size and are given as they are. Some are given once more at the end.
  std::optional<size_t> batch_size = {};
};

/// Gives the batches of a list.
class BatchSampler : public SeedableSampler {
 public:
  /// Throws: UsageError for an empty batch, or one above batch_size.
  explicit BatchSampler(std::vector<Indices> batches, const BatchSamplerOptions& options = {});

  size_t size() const noexcept override { return num_indices_; }
  std::optional<size_t> batch_size() const noexcept { return options_.batch_size; }
  size_t num_batches() const noexcept { return batches_.size(); }
  size_t batch_length(size_t index) const { return batches_.at(index).size(); }
  /// Samples of the largest batch.
  size_t largest_batch() const noexcept { return largest_; }

  /// Returns the next batch, or what seek has left of it; `batch_size` is not looked at.
  std::optional<Indices> next(size_t batch_size) override;

 protected:
  void begin_epoch(uint64_t epoch) override;
  size_t at(size_t position) const override;

 private:
  size_t batch_at(size_t nth) const;
  /// Which batch of the epoch holds a position.
  size_t nth_at(size_t position) const;

  std::vector<Indices> batches_;
  BatchSamplerOptions options_;
  size_t num_indices_ = 0, largest_ = 0;
  SeedableRandomSampler order_;
  std::vector<size_t> starts_;  // by place in the epoch: the position of the batch's first index
};

}  // namespace hasten::data
