// Policies of a DeepSpeed configuration for the steps of prepared optimizers: clipping, and steps left out.
#pragma once

#include <functional>
#include <vector>

#include "hasten/training/step_policy.h"

namespace hasten {

/// Clips the gradients of the stepping optimizer, once a window.
class ClipPolicy : public training::StepPolicy {
 public:
  std::function<double()> limit;
  std::function<void(const std::vector<at::Tensor>&, double)> clip;
  bool was_clipped = false;

  void before_step(training::StepContext& context) override;
  void after_step(training::StepContext&) override { was_clipped = false; }
};

/// Skips a step whose gradients are not finite.
class OverflowPolicy : public training::StepPolicy {
 public:
  std::function<bool()> applies;
  std::function<bool(const std::vector<at::Tensor>&)> finite;
  std::function<void()> warn;

  void before_step(training::StepContext& context) override;
};

}  // namespace hasten
