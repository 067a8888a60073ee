// StepTimes: where the time of this rank's steps goes, for plan_report().
#pragma once

#include <chrono>
#include <memory>

#include "hasten/accelerator/measured_step.h"
#include "hasten/training/backward_observers.h"
#include "hasten/training/counted_optimizer.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/step_policy.h"

namespace hasten {

/// A policy of steps and an observer of backwards. On a device times are those of the host's thread, which waits for
/// the device at the latest where a loop reads its loss.
class StepTimes : public training::StepPolicy, public training::BackwardObserver {
 public:
  /// `gradients` are those of the loop whose steps it times.
  explicit StepTimes(const std::shared_ptr<training::GradientState>& gradients) : gradients_(gradients) {}

  void before_backward(const training::BackwardFacts& facts) override;
  void after_backward(const training::BackwardFacts& facts) override;
  void after_step(training::StepContext& context) override;

  MeasuredStep mean() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kFirst = 2;
  /// Not kept alive: it holds this policy.
  const std::weak_ptr<training::GradientState> gradients_;
  training::CountedOptimizer counted_ = {};
  Clock::time_point last_ = {};
  int64_t num_steps_ = 0;
  MeasuredStep step_ = {};
  MeasuredStep sum_ = {};
};

}  // namespace hasten
