// StepPolicy: what happens around a prepared optimizer's step, and in its place.
//
// A gradient scaler checks gradients before the step and skips it, sharding steps slices, masters are rounded into the
// model afterwards. Each is a policy in a list that prepared optimizers (optim/prepared/) go through. No policy depends
// on another. The order is fixed by kind: unscale and check, clip, step, after. Prepared schedulers notice skipped
// steps through GradientState.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace hasten::training {

/// A step of one optimizer, on its way through the policies.
struct StepContext {
  torch::optim::Optimizer& optimizer;
  /// Computes the loss anew (LBFGS); may be empty.
  const std::function<at::Tensor()>& closure;
  /// Set by before_step: parameters stay as they are, and schedules wait.
  bool skip = false;
  /// Gradients count times this factor in the step; several policies multiply. The gradients themselves may be left.
  double gradient_factor = 1.0;
  /// The closure's loss, once the step was made.
  at::Tensor loss = {};
};

class StepPolicy {
 public:
  virtual ~StepPolicy() = default;
  /// Called when gradients have been exchanged, before the step. May collect from all ranks, whose calls are alike.
  virtual void before_step(StepContext&) {}
  /// Makes the step, with context.gradient_factor, and returns true. Otherwise it returns false and leaves the step to
  /// the next policy, at last to the optimizer. Not called for a skipped step.
  virtual bool step(StepContext&) { return false; }
  /// Called after the step, or in its place where context.skip is set.
  virtual void after_step(StepContext&) {}
};

/// The position of a policy in the list; equal ones keep the order in which they were added.
enum class StepOrder { kUnscale, kClip, kStep, kAfter };

/// The policies of one Accelerator, for all of its optimizers or for one.
class StepPolicies {
 public:
  /// `only` null: for every optimizer. The policy is kept alive.
  void add(StepOrder order, std::shared_ptr<StepPolicy> policy, const torch::optim::Optimizer* only = nullptr);
  /// Takes it off again; nothing if it is not there.
  void remove(const StepPolicy* policy);
  /// Those of an optimizer, in order.
  std::vector<std::shared_ptr<StepPolicy>> of(const torch::optim::Optimizer& optimizer) const;
  bool empty() const noexcept { return entries_.empty(); }

 private:
  struct Entry {
    StepOrder order;
    std::shared_ptr<StepPolicy> policy;
    const torch::optim::Optimizer* only;
  };
  std::vector<Entry> entries_;
};

}  // namespace hasten::training
