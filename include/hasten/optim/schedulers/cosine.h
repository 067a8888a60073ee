// CosineAnnealingLR and CosineAnnealingWarmRestarts: the rate falls along half a cosine.
//
// Both follow SGDR (Loshchilov & Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017);
// formulas, option names and defaults are PyTorch's.
#pragma once

#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

struct CosineAnnealingLROptions {
  /// Steps from the base rate down to eta_min, at least 1. Required.
  int64_t T_max = 0;
  double eta_min = 0.0;
};

/// rate(s) = eta_min + (base - eta_min) * (1 + cos(pi * s / T_max)) / 2, which rises again after T_max.
/// Recursive, as PyTorch's: it acts on the rate that the optimizer has.
class CosineAnnealingLR final : public Scheduler {
 public:
  using Options = CosineAnnealingLROptions;
  /// Throws: UsageError if T_max < 1, or eta_min is negative.
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct CosineAnnealingWarmRestartsOptions {
  /// Steps until the first restart, at least 1. Required.
  int64_t T_0 = 0;
  /// Length of a cycle over that of the one before, at least 1.
  int64_t T_mult = 1;
  double eta_min = 0.0;
};

/// rate = eta_min + (base - eta_min) * (1 + cos(pi * T_cur / T_i)) / 2, where T_cur counts the steps of the
/// present cycle and T_i is its length. A function of the step alone: it overrides the rate that was there.
class CosineAnnealingWarmRestarts final : public Scheduler {
 public:
  using Options = CosineAnnealingWarmRestartsOptions;
  /// Throws: UsageError if T_0 or T_mult < 1, or eta_min is negative.
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

}  // namespace hasten::optim
