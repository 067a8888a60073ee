// See gradient_hooks.h.
#include "parallel/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "hasten/interception/claim.h"

namespace hasten::parallel {
namespace {

class CallWithIndex : public torch::autograd::FunctionPostHook, public interception::Claim {
 public:
  CallWithIndex(OnGradient function, size_t index) : function_(std::move(function)), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    function_(index_, inputs[0]);
    return outputs;
  }
  std::string words() const override { return "a parameter of a prepared model"; }

 private:
  OnGradient function_;
  size_t index_;
};

}  // namespace

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, const OnGradient& on_gradient)
    : parameters_(std::move(parameters)) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[i]);
    const uintptr_t key = accumulator->add_post_hook(std::make_unique<CallWithIndex>(on_gradient, i));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientHooks::~GradientHooks() {
  for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

bool GradientHooks::intact() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(parameters_[i]) != hooks_[i].first) return false;
  }
  return true;
}

}  // namespace hasten::parallel
