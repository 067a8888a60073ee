// CyclicLR: the rate goes up and down between two bounds, the momentum against it.
//
// Follows Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017; formulas, option names
// and defaults are PyTorch's. The single cycle of the same author is in one_cycle.h.
#pragma once

#include <functional>

#include "hasten/optim/per_group.h"
#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

/// The change of a cycle's height: none; halved each cycle; times gamma each step.
enum class CyclicMode { kTriangular, kTriangular2, kExpRange };
/// The argument of an own scale_fn: the cycle, counted from 1, or the step, counted from 0.
enum class ScaleMode { kCycle, kIterations };

struct CyclicLROptions {
  /// The lower and the upper bound. Required.
  PerGroup<double> base_lr = {};
  PerGroup<double> max_lr = {};
  int64_t step_size_up = 2000;
  /// As step_size_up where it is not given.
  std::optional<int64_t> step_size_down = {};
  CyclicMode mode = CyclicMode::kTriangular;
  /// For kExpRange.
  double gamma = 1.0;
  /// Instead of mode: the height of a cycle, from 0 to 1.
  std::function<double(double)> scale_fn = {};
  ScaleMode scale_mode = ScaleMode::kCycle;
  /// The momentum (Adam's beta1) goes from max_momentum down to base_momentum where the rate goes up.
  bool cycle_momentum = true;
  PerGroup<double> base_momentum = 0.8;
  PerGroup<double> max_momentum = 0.9;
};

/// rate(s) = base_lr + (max_lr - base_lr) * x(s) * scale, with x a triangle from 0 to 1 and back to 0.
class CyclicLR final : public Scheduler {
 public:
  using Options = CyclicLROptions;
  /// Throws: UsageError if a bound is missing, a step size is < 1, or gamma is not above 0;
  /// UsageError if cycle_momentum is set for an optimizer without momentum.
  CyclicLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  std::optional<double> momentum(size_t group) const override;
  /// Returns the triangle's value at the present step, times the cycle's scale.
  double height() const;

  Options options_;
  double total_size_ = 0.0, step_ratio_ = 0.0;
  std::vector<double> max_lrs_, base_momenta_, max_momenta_;
};

}  // namespace hasten::optim
