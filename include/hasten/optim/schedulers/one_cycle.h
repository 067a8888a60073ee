// OneCycleLR: one rise of the rate and one long fall far below where it began, the momentum against it.
//
// Follows Smith & Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates", 2018;
// formulas, option names and defaults are PyTorch's. The schedule has an end. PyTorch lets one step pass it, where the
// rate rises again or becomes negative. Here the last rate stays.
#pragma once

#include "hasten/optim/per_group.h"
#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

enum class AnnealStrategy { kCos, kLinear };

struct OneCycleLROptions {
  /// The highest rate. Required.
  PerGroup<double> max_lr = {};
  /// The length; or epochs and steps_per_epoch, whose product it is. One of the two is required.
  std::optional<int64_t> total_steps = {};
  std::optional<int64_t> epochs = {};
  std::optional<int64_t> steps_per_epoch = {};
  /// The part of all steps that the rise takes.
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  bool cycle_momentum = true;
  PerGroup<double> base_momentum = 0.85;
  PerGroup<double> max_momentum = 0.95;
  /// The first rate is max_lr / div_factor, the last one the first / final_div_factor.
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  /// Up and down alike, and the last fall apart, instead of one fall.
  bool three_phase = false;
};

/// From max_lr / div_factor up to max_lr, and down to max_lr / div_factor / final_div_factor at step
/// total_steps - 1, along a cosine or a line. The optimizer's own rate plays no part.
class OneCycleLR final : public Scheduler {
 public:
  using Options = OneCycleLROptions;
  /// Throws: UsageError if max_lr or the length is missing, a length is < 1, or pct_start
  /// is not in [0, 1]; UsageError if a division factor is not above 0, or cycle_momentum is set for an optimizer
  /// without momentum.
  OneCycleLR(torch::optim::Optimizer& optimizer, const Options& options);

  int64_t total_steps() const noexcept { return total_steps_; }
  /// After total_steps steps, one more than the schedule needs, since a loop steps after its last batch too.
  bool finished() const noexcept override { return last_epoch() >= total_steps_; }

 private:
  /// A part of the schedule: the step it leads to, and rate and momentum at its two ends.
  struct Phase {
    double end_step;
    double from_lr, to_lr;
    double from_momentum, to_momentum;
  };
  void advance() override;
  double rate(size_t group, double before, Moment moment) const override;
  std::optional<double> momentum(size_t group) const override;
  std::vector<Phase> phases(size_t group) const;
  double anneal(size_t group, double Phase::*from, double Phase::*to) const;

  Options options_;
  int64_t total_steps_ = 0;
  std::vector<double> max_lrs_, base_momenta_, max_momenta_;
};

}  // namespace hasten::optim
