// PreparedOptimizer: the handle that Accelerator::prepare gives for an optimizer.
//
// It steps when gradients have been exchanged and does nothing in between (Accelerate's
// AcceleratedOptimizer), so that a loop which accumulates gradients reads like one that does not. The
// optimizer itself stays libtorch's, unwrapped; how it steps is optimizer_step.h's matter.
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

/// Whether any of its parameters has a gradient.
/// Collective: no. Blocks: no. Throws: nothing.
inline bool has_gradients(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const torch::optim::OptimizerParamGroup& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  });
}

namespace detail {

/// The step with the policies around it (training/step_policy.h): before, the step of a policy or the optimizer's own, after.
/// Records in `gradients` whether it was skipped.
at::Tensor prepared_step(torch::optim::Optimizer& optimizer, training::GradientState& gradients,
                         const PreparedOptimizerOptions& options,
                         const torch::optim::Optimizer::LossClosure& closure);

}  // namespace detail

/// A value handle; copies are the same optimizer.
template <class O>
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<O> optimizer, std::shared_ptr<training::GradientState> gradient_state,
                    const PreparedOptimizerOptions& options = {})
      : optimizer_(std::move(optimizer)),
        gradient_state_(std::move(gradient_state)),
        options_(options),
        known_(gradient_state_->set_prepared(*optimizer_)) {}

  /// The optimizer's step, fused where libtorch has a kernel for it; nothing while gradients are being
  /// accumulated, and skipped where the weights of all ranks' losses were zero. With a closure that computes
  /// the loss anew (LBFGS) it gives the loss, undefined while accumulating. LBFGS decides by the loss how
  /// often it calls the closure, so all ranks must return the same: the mean over them (Accelerator::reduce).
  /// Collective: no (the closure is), unless parameters are sharded. Blocks: no. Throws: what the optimizer throws.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr) const {
    if (!gradient_state_->sync_gradients()) return {};
    if (!closure && gradient_state_->weighted() && !has_gradients(*optimizer_)) {
      skip_step();
      return {};
    }
    return detail::prepared_step(*optimizer_, *gradient_state_, options_, closure);
  }

  /// In the place of step() where a program has found gradients that it does not want: parameters stay, and
  /// prepared schedulers of this optimizer do not move. Nothing while gradients are being accumulated. A
  /// gradient scaler of the Accelerator's does this by itself.
  /// Collective: no, but all ranks must skip the same steps. Blocks: no. Throws: nothing.
  void skip_step() const {
    if (gradient_state_->sync_gradients()) gradient_state_->set_step_was_skipped(*optimizer_, true);
  }
  /// Whether the last step was skipped.
  bool step_was_skipped() const { return gradient_state_->step_was_skipped(*optimizer_); }

  /// Forgets the gradients, in libtorch's two forms; nothing while they are being accumulated.
  void zero_grad(bool set_to_none = true) const {
    if (!gradient_state_->sync_gradients()) return;
    optimizer_->zero_grad(set_to_none);
    gradient_state_->count_zero_grad();
  }

  O* operator->() const noexcept { return optimizer_.get(); }
  O& unwrap() const noexcept { return *optimizer_; }
  const PreparedOptimizerOptions& options() const noexcept { return options_; }

 private:
  std::shared_ptr<O> optimizer_;
  std::shared_ptr<training::GradientState> gradient_state_;
  PreparedOptimizerOptions options_;
  std::shared_ptr<const void> known_;
};

template <class T>
struct is_prepared_optimizer : std::false_type {};
template <class O>
struct is_prepared_optimizer<PreparedOptimizer<O>> : std::true_type {};
template <class T>
inline constexpr bool is_prepared_optimizer_v = is_prepared_optimizer<std::remove_cvref_t<T>>::value;

}  // namespace hasten::optim
