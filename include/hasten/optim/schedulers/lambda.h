// LambdaLR and MultiplicativeLR: the rate as a function that the program gives.
//
// Formulas and option names are PyTorch's (torch.optim.lr_scheduler). Functions cannot be saved: the state holds the
// position of the schedule, and the program gives the same functions again.
#pragma once

#include <functional>

#include "hasten/optim/per_group.h"
#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

/// A factor for a step, counted from 0.
using LrLambda = std::function<double(int64_t)>;

struct LambdaLROptions {
  /// A function for all parameter groups, or a function for each. Required.
  PerGroup<LrLambda> lr_lambda = {};
};

/// rate(s) = base * lr_lambda(s).
class LambdaLR final : public Scheduler {
 public:
  using Options = LambdaLROptions;
  /// Throws: UsageError if functions are missing, or are not one for each group.
  LambdaLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  std::vector<LrLambda> lambdas_;
};

struct MultiplicativeLROptions {
  /// A function for all parameter groups, or a function for each. Required.
  PerGroup<LrLambda> lr_lambda = {};
};

/// rate(s) = rate(s - 1) * lr_lambda(s); step 0 leaves the rate as it is.
class MultiplicativeLR final : public Scheduler {
 public:
  using Options = MultiplicativeLROptions;
  /// Throws: UsageError if functions are missing, or are not one for each group.
  MultiplicativeLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  std::vector<LrLambda> lambdas_;
};

}  // namespace hasten::optim
