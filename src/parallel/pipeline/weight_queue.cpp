// See weight_queue.h.
#include "parallel/pipeline/weight_queue.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "parallel/tensor/cut_axis.h"

namespace hasten::parallel::pipeline {
namespace {

WeightQueue*& queue_of_thread() {
  thread_local WeightQueue* queue = nullptr;
  return queue;
}

// As a backward would have it: hooks run, and what is there is added to.
void accumulate(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parameter.defined() && parameter.requires_grad()) {
    parameter.backward(gradient.to(parameter.scalar_type()).view(parameter.sizes()));
  }
}

struct DeferredLinear : torch::autograd::Function<DeferredLinear> {
  // The parameters are no inputs of the node: their gradients come by another way.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const LinearParameters& parameters) {
    context->save_for_backward({x});
    context->saved_data["weight"] = parameters.weight;
    context->saved_data["bias"] = parameters.bias;
    const interception::PassScope pass;
    return at::linear(x, parameters.weight, parameters.bias.defined() ? std::optional(parameters.bias) : std::nullopt);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const interception::PassScope pass;
    const at::Tensor x = context->get_saved_variables()[0], gradient = gradients[0];
    const at::Tensor weight = context->saved_data["weight"].toTensor(), bias = context->saved_data["bias"].toTensor();
    const auto compute = [x, weight, bias, gradient] {
      const interception::PassScope unseen;
      at::Tensor of_weight, of_bias;
      {
        const at::NoGradGuard no_grad;
        const at::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
        of_weight = rows.t().mm(x.reshape({-1, x.size(-1)}).to(rows.scalar_type()));
        if (bias.defined()) of_bias = rows.sum(0);
      }
      accumulate(weight, of_weight);
      accumulate(bias, of_bias);
    };
    if (auto* const queue = WeightQueue::current()) {
      queue->add(compute);
    } else {
      compute();
    }
    return {gradient.matmul(weight.to(gradient.scalar_type())).to(x.scalar_type()), at::Tensor()};
  }
};

bool is_own_leaf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_leaf() && tensor.requires_grad() && placed_by(tensor) == nullptr;
}

}  // namespace

WeightQueue::Scope::Scope(WeightQueue& queue, std::pair<int, int> key)
    : before_(std::exchange(queue_of_thread(), &queue)) {
  queue.key_ = key;
}

WeightQueue::Scope::~Scope() {
  queue_of_thread() = before_;
}

WeightQueue* WeightQueue::current() noexcept {
  return queue_of_thread();
}

void WeightQueue::run(std::pair<int, int> key) {
  const auto found = waiting_.extract(key);
  if (found.empty()) return;
  for (const auto& compute : found.mapped()) compute();
}

bool can_be_deferred(const at::Tensor& x, const LinearParameters& linear) {
  const bool plain_bias = !linear.bias.defined() || is_own_leaf(linear.bias);
  // Without a gradient of its input there is no backward that could be split.
  return at::GradMode::is_enabled() && is_own_leaf(linear.weight) && plain_bias &&
         tensor::GlobalTensor::of(x) == nullptr && x.requires_grad();
}

at::Tensor deferred_linear(const at::Tensor& x, const LinearParameters& linear) {
  return DeferredLinear::apply(x, linear);
}

}  // namespace hasten::parallel::pipeline
