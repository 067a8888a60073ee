// PreparedOptimizer: the handle that Accelerator::prepare gives for an optimizer.
//
// The handle steps when gradients have been exchanged and does nothing in between, as Accelerate's
// AcceleratedOptimizer. A loop that accumulates gradients thus reads like a loop that does not. The optimizer itself
// stays libtorch's, unwrapped; how it steps is optimizer_step.h's matter.
#pragma once

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/training/gradient_state.h"

namespace hasten::optim {

template <class T>
inline constexpr bool is_optimizer_v = std::is_base_of_v<torch::optim::Optimizer, std::remove_cvref_t<T>>;

/// Returns true if any of its parameters has a gradient.
inline bool has_gradients(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const torch::optim::OptimizerParamGroup& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  });
}

/// A prepared optimizer of any class, for lists and functions that are no templates. A value handle; copies are the
/// same optimizer.
class AnyPreparedOptimizer {
 public:
  AnyPreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                       std::shared_ptr<training::GradientState> gradient_state,
                       const PreparedOptimizerOptions& options = {});
  // Moves copy: a handle that was moved from is one still.
  AnyPreparedOptimizer(const AnyPreparedOptimizer&) = default;
  AnyPreparedOptimizer& operator=(const AnyPreparedOptimizer&) = default;

  /// Makes the optimizer's step, fused if libtorch has a kernel for it, with the policies around it
  /// (training/step_policy.h). While gradients are being accumulated it does nothing. If the weights of all ranks'
  /// losses are zero, the step is skipped. With a closure that computes the loss anew (LBFGS) it returns the loss,
  /// undefined while accumulating. LBFGS decides by the loss how often it calls the closure, so all ranks must return
  /// the same: the mean over them (Accelerator::reduce).
  /// Collective: no (the closure is), unless parameters are sharded. Throws: the exceptions of the
  /// optimizer.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr) const;

  /// Call it in the place of step() to reject gradients. Parameters stay, and prepared schedulers of this optimizer do
  /// not move. Nothing while gradients are being accumulated. A gradient scaler of the Accelerator's does this by
  /// itself.
  /// Collective: no, but all ranks must skip the same steps.
  void skip_step() const;
  /// Returns true if the last step was skipped.
  bool step_was_skipped() const { return gradient_state_->step_was_skipped(*optimizer_); }

  /// Forgets the gradients, in libtorch's two forms. Does nothing while accumulated gradients wait for this optimizer's
  /// step. So it may be at the head of the loop's body or behind step().
  void zero_grad(bool set_to_none = true) const;

  torch::optim::Optimizer* operator->() const noexcept { return optimizer_.get(); }
  torch::optim::Optimizer& unwrap() const noexcept { return *optimizer_; }
  const PreparedOptimizerOptions& options() const noexcept { return options_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<training::GradientState> gradient_state_;
  PreparedOptimizerOptions options_;
  std::shared_ptr<const void> known_;
};

/// The same with the optimizer's class. Converts to AnyPreparedOptimizer.
template <class O>
class PreparedOptimizer : public AnyPreparedOptimizer {
 public:
  PreparedOptimizer(const std::shared_ptr<O>& optimizer, std::shared_ptr<training::GradientState> gradient_state,
                    const PreparedOptimizerOptions& options = {})
      : AnyPreparedOptimizer(optimizer, std::move(gradient_state), options), typed_(optimizer.get()) {}

  O* operator->() const noexcept { return typed_; }
  O& unwrap() const noexcept { return *typed_; }

 private:
  O* typed_;
};

template <class T>
struct is_prepared_optimizer : std::false_type {};
template <class O>
struct is_prepared_optimizer<PreparedOptimizer<O>> : std::true_type {};
template <>
struct is_prepared_optimizer<AnyPreparedOptimizer> : std::true_type {};
template <class T>
inline constexpr bool is_prepared_optimizer_v = is_prepared_optimizer<std::remove_cvref_t<T>>::value;

}  // namespace hasten::optim
