// Which part of a step is whose: the multi-tensor steps', the optimizer's own; see optimizer_step.h.
#include "hasten/optim/steps/optimizer_step.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "compat/versions.h"
#include "optim/steps/multi_tensor_step.h"

namespace hasten::optim {
namespace {

using torch::optim::Optimizer;

// Other gradients, or none, in the place of parameters' own, which come back with its end.
class ScopedGradientSwap {
 public:
  ScopedGradientSwap() = default;
  ScopedGradientSwap(const ScopedGradientSwap&) = delete;
  ScopedGradientSwap& operator=(const ScopedGradientSwap&) = delete;
  ~ScopedGradientSwap() { give_back(); }

  void hide(const std::vector<at::Tensor>& params) {
    for (const auto& param : params) lend(param, {});
  }
  void negate(Optimizer& optimizer) {
    const at::NoGradGuard no_grad;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& param : group.params()) {
        if (param.grad().defined()) lend(param, param.grad().neg());
      }
    }
  }
  void give_back() {
    for (auto& [param, grad] : owned_) param.mutable_grad() = std::move(grad);
    owned_.clear();
  }

 private:
  void lend(const at::Tensor& param, at::Tensor grad) {
    owned_.emplace_back(param, std::exchange(param.mutable_grad(), std::move(grad)));
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> owned_;
};

// A maximum of the loss is a minimum of its negative, whose gradients are the negated ones.
at::Tensor own_step(Optimizer& optimizer, bool maximize, const Optimizer::LossClosure& closure) {
  if (!maximize) return optimizer.step(closure);
  ScopedGradientSwap negated;
  if (!closure) {
    negated.negate(optimizer);
    return optimizer.step();
  }
  const at::Tensor loss = optimizer.step([&] {
    negated.give_back();
    const at::Tensor evaluated = closure();
    negated.negate(optimizer);
    return evaluated.neg();
  });
  return loss.neg();
}

// Fused kernels and torch::optim::SGD leave versions as they are. A graph from before the step is refused by them.
void count_step(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) {
      if (param.grad().defined()) compat::bump_version(param);
    }
  }
}

}  // namespace

detail::StepChoice detail::choice_of(const PreparedOptimizerOptions& options) {
  StepChoice choice{.fused = options.fused, .maximize = options.maximize};
  if (options.foreach.value_or(options.fused)) {
    choice.foreach_on = [](c10::Device device) { return device.is_cuda(); };
  }
  return choice;
}

at::Tensor detail::optimizer_step(Optimizer& optimizer, const StepChoice& choice,
                                  const Optimizer::LossClosure& closure) {
  make_late_states(optimizer);
  const bool own_only = !choice.fused && choice.foreach_on == nullptr;
  if (own_only || !has_multi_tensor_step(optimizer)) {
    at::Tensor loss = own_step(optimizer, choice.maximize, closure);
    count_step(optimizer);
    return loss;
  }
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const auto done = multi_tensor_step(optimizer, choice);
  if (done.num_left > 0) {
    ScopedGradientSwap hidden;
    hidden.hide(done.stepped);
    own_step(optimizer, choice.maximize, nullptr);
  }
  count_step(optimizer);
  return loss;
}

at::Tensor optimizer_step(Optimizer& optimizer, const PreparedOptimizerOptions& options,
                          const Optimizer::LossClosure& closure) {
  return detail::optimizer_step(optimizer, detail::choice_of(options), closure);
}

}  // namespace hasten::optim
