// StepTimes: where the time of this rank's steps goes, for plan_report().
#pragma once

#include <chrono>

#include "hasten/accelerator/measured_step.h"
#include "hasten/training/backward_observers.h"
#include "hasten/training/step_policy.h"

namespace hasten {

/// A policy of steps and an observer of backwards. On a device times are those of the host's thread, which waits for
/// the device at the latest where a loop reads its loss.
class StepTimes : public training::StepPolicy, public training::BackwardObserver {
 public:
  void before_backward(const training::BackwardFacts& facts) override;
  void after_backward(const training::BackwardFacts& facts) override;
  /// Of several optimizers the first one that steps is counted.
  void after_step(training::StepContext& context) override;

  MeasuredStep mean() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kFirst = 2;
  const torch::optim::Optimizer* counted_ = nullptr;
  Clock::time_point last_ = {};
  int64_t num_steps_ = 0;
  MeasuredStep step_ = {};
  MeasuredStep sum_ = {};
};

}  // namespace hasten
