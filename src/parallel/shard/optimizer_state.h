// The tensors of libtorch's optimizer states, by name; and which optimizers step each element by itself.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace hasten::parallel::shard {

enum class StepKind {
  /// Each element is stepped by itself: any slices give the bits of the whole.
  kElementwise,
  /// The step needs whole parameters (norms, factored moments, a class of the program's own).
  kWhole,
  /// The step needs all parameters at once (LBFGS).
  kAll,
};

StepKind step_kind(const torch::optim::Optimizer& optimizer);

using VisitState = std::function<void(const char* name, at::Tensor& tensor)>;

/// Calls `visit` for each tensor of a state. Returns false for an unknown type.
bool visit_state(torch::optim::OptimizerParamState& state, const VisitState& visit);

/// Returns the number of steps that a state has counted; nothing for types without one.
std::optional<int64_t> step_of(torch::optim::OptimizerParamState& state);

/// Returns the names that visit_state gives for the optimizer's state, in its order; none for other classes.
std::vector<const char*> state_names(const torch::optim::Optimizer& optimizer);

/// Returns a new state of the optimizer's type, with no tensors. Null for classes that state_names lacks.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(const torch::optim::Optimizer& optimizer);

/// Sets the number of steps, where the type has one.
void set_step(torch::optim::OptimizerParamState& state, int64_t step);

/// Returns the numbers of a group's options (learning rate, momentum, betas …) in a fixed order. For other classes than
/// libtorch's, it is the learning rate alone. set_group_numbers takes what group_numbers of such a group has given.
std::vector<double> group_numbers(const torch::optim::OptimizerParamGroup& group);
void set_group_numbers(torch::optim::OptimizerParamGroup& group, const std::vector<double>& numbers);

}  // namespace hasten::parallel::shard
