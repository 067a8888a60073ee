// StepLR, MultiStepLR, ConstantLR, LinearLR, ExponentialLR and PolynomialLR: rates that are multiplied by a
// factor at given steps.
//
// Formulas, option names and defaults are PyTorch's (torch.optim.lr_scheduler). Each is recursive: it changes
// the rate that the optimizer has, so that they can be chained (composed.h). Closed forms below are for a
// scheduler that is alone; s counts steps from 0.
#pragma once

#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

struct StepLROptions {
  /// Steps between two decays, at least 1. Required.
  int64_t step_size = 0;
  double gamma = 0.1;
};

/// rate(s) = base * gamma^floor(s / step_size).
class StepLR final : public Scheduler {
 public:
  using Options = StepLROptions;
  /// Throws: UsageError if step_size < 1, or gamma is not above 0.
  StepLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct MultiStepLROptions {
  /// Steps at which the rate decays, in ascending order. A step that is listed n times decays n times. Required.
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};

/// rate(s) = base * gamma^(number of milestones up to s).
class MultiStepLR final : public Scheduler {
 public:
  using Options = MultiStepLROptions;
  /// Throws: UsageError if milestones are missing, not in order or negative, or
  /// gamma is not above 0.
  MultiStepLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct ConstantLROptions {
  /// Above 0 (the rate could not be restored from 0) and at most 1.
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
};

/// rate(s) = base * factor for s < total_iters, then base.
class ConstantLR final : public Scheduler {
 public:
  using Options = ConstantLROptions;
  /// Throws: UsageError if factor is not in (0, 1], or total_iters < 1.
  ConstantLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t total_iters = 5;
};

/// rate(s) = base * (start_factor + (end_factor - start_factor) * min(s, total_iters) / total_iters).
class LinearLR final : public Scheduler {
 public:
  using Options = LinearLROptions;
  /// Throws: UsageError if start_factor is not in (0, 1], end_factor not in
  /// [0, 1], or total_iters < 1.
  LinearLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct ExponentialLROptions {
  /// Above 0; above 1 the rate grows. Required.
  double gamma = 0.0;
};

/// rate(s) = base * gamma^s.
class ExponentialLR final : public Scheduler {
 public:
  using Options = ExponentialLROptions;
  /// Throws: UsageError if gamma is not above 0.
  ExponentialLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1.0;
};

/// rate(s) = base * (1 - min(s, total_iters) / total_iters)^power.
class PolynomialLR final : public Scheduler {
 public:
  using Options = PolynomialLROptions;
  /// Throws: UsageError if total_iters < 1, or power is negative.
  PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

}  // namespace hasten::optim
