// The common part of ApexAdam, ApexSgd, Lamb and NovoGrad: their state, and a parameter in the form of a step loop or
// an operator.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <vector>

#include "hasten/core/error.h"
#include "hasten/optim/moment_state.h"
#include "hasten/optim/steps/rules.h"

namespace hasten::optim::detail {

steps::Storage storage_of(at::ScalarType dtype);
MomentState& moment_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
at::Tensor moment_like(const at::Tensor& parameter);

/// A parameter with a gradient. `weight` is float32 (float64 for such parameters): the parameter, its master, or a
/// copy.
struct Target {
  Target(const at::Tensor& parameter, MomentState& state, bool with_master);
  /// Returns what a step loop writes to; the parameter has another version from then on.
  steps::Slice slice(const at::Tensor& first, const at::Tensor& second = {}) const;
  /// Writes a copy back that operators have stepped.
  void finish() const;

  at::Tensor parameter, weight, gradient;
  /// Whether the step loops can take it; else libtorch operators do.
  bool loops = false;
  /// Gradients are multiplied by it.
  double factor = 1;
};

/// Returns the sum of squares of the gradient, and its largest magnitude.
double squares_of(const Target& target);
double largest_of(const Target& target);

void require_at_least_0(const char* optimizer, const char* option, double value);

/// libtorch's own loading, which is here because it is a template for each class.
template <class Options, class Optimizer>
void load_optimizer(torch::serialize::InputArchive& archive, Optimizer& optimizer) {
  torch::optim::serialize<MomentState, Options>(archive, optimizer);
}

/// Calls `fn(options, parameter)` for every parameter that has a gradient.
template <class Options, class Fn>
void for_gradients(torch::optim::Optimizer& optimizer, const Fn& fn) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) fn(options, parameter);
    }
  }
}

inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_gradients(true);
  return closure();
}

}  // namespace hasten::optim::detail
