// WarmupLR: the rate rises linearly over the first steps, then another schedule begins.
//
// Two customs with one formula. Linear warm-up rises from nearly nothing to the base rate. Gradual warm-up begins at
// the base rate of one worker and rises to that of k workers, k times as much. It is by Goyal et al., "Accurate, Large
// Minibatch SGD: Training ImageNet in 1 Hour", 2017. PyTorch has neither; it builds the first from LinearLR and
// SequentialLR, and gets the same rates.
#pragma once

#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

struct WarmupLROptions {
  /// Steps of the rise; with 0 there is none. Required.
  int64_t total_iters = -1;
  /// Factors of the base rate at which the rise begins and ends.
  double start_factor = 0.0;
  double end_factor = 1.0;
  /// The scheduler that begins at step total_iters, from base * end_factor. Without it the rate stays there.
  Recipe after = {};
};

/// rate(s) = base * (start_factor + (end_factor - start_factor) * s / total_iters) for s < total_iters, then
/// that of `after` at step s - total_iters. With a start_factor of 0 the first step changes nothing;
/// 1 / total_iters is a common choice.
class WarmupLR final : public Scheduler {
 public:
  using Options = WarmupLROptions;
  /// Throws: UsageError if total_iters is missing or negative, start_factor
  /// negative, or end_factor not above 0; what `after` throws.
  WarmupLR(torch::optim::Optimizer& optimizer, const Options& options);

  void start() override;
  void restart() override;
  bool finished() const noexcept override;

 private:
  double rate(size_t group, double before, Moment moment) const override;
  void advance() override;
  void save(core::Value& state) const override;
  void load(const core::Value& state) override;
  std::vector<double> warm_rates() const;

  Options options_;
  std::unique_ptr<Scheduler> after_;
};

struct GradualWarmupOptions {
  /// k: how many times the base rate is reached, as a rule the number of workers.
  double multiplier = 1.0;
  /// Goyal et al. take five epochs' steps.
  int64_t total_iters = -1;
  Recipe after = {};
};

/// Goyal's warm-up, for an optimizer with the rate of one worker: from base to base * multiplier.
/// `WarmupLR(sgd, gradual_warmup({.multiplier = 8, .total_iters = 5 * steps_per_epoch}))`.
/// Throws: nothing; WarmupLR's constructor does.
WarmupLROptions gradual_warmup(const GradualWarmupOptions& options);

}  // namespace hasten::optim
