// GradientExchange: another way than an all-reduce for a model's gradients to reach the ranks that need them.
//
// Ddp holds hooks, windows, weights and the order of the exchanges. An exchange object decides where parameters lie,
// which of them form a unit, and how a unit is exchanged. Without one, Ddp all-reduces buckets of its own.
// parallel/shard has the one that reduces to owners.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace hasten::parallel {

class ReducerBucket;
struct ReducerBucketSettings;

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  /// The parameters' memory becomes each rank's own again, before the ranks' copies are made equal.
  /// Throws: the exceptions of the allocator.
  virtual void release() = 0;

  /// Puts the module's parameters where they shall lie, with rank 0's values, and plans units over the
  /// trainable ones among `trainable` (`names` alike). Returns the parameters that it leaves alone.
  /// Collective: yes. Blocks: yes. Throws: UsageError, CommError.
  virtual std::vector<at::Tensor> place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                        const std::vector<at::Tensor>& trainable) = 0;

  /// Units, by index into `trainable`, in the order in which they are exchanged. Parameters in none are all-reduced.
  virtual std::vector<std::vector<size_t>> units() const = 0;

  /// Starts the exchange of a unit. Collective: yes. Throws: CommError.
  virtual std::unique_ptr<ReducerBucket> make_bucket(size_t unit, const ReducerBucketSettings& settings) = 0;

  /// A backward's exchanges begin; and have all ended on this rank. `ends_window`: it is the last one before a step.
  /// Collective: begin no, finish yes. Blocks: finish. Throws: CommError.
  virtual void begin(bool ends_window) = 0;
  virtual void finish() = 0;
};

}  // namespace hasten::parallel
