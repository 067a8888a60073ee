// SlicedStep: slices in the place of an optimizer's parameters while it steps.
//
// An optimizer's groups hold tensors and its state is found by their addresses. For the time of a step, flat tensors
// over the slices that this rank owns replace the parameters of split models in the groups. They have their gradients
// and state. Parameters of which it owns nothing are left out. So every class steps slices, by its own step() or by the
// fused kernels, without a change.
#pragma once

#include <torch/optim/optimizer.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/shard/optimizer_state.h"
#include "parallel/shard/sharded_model.h"

namespace hasten::parallel::shard {

/// Where a parameter of an optimizer is split.
struct SplitParameter {
  ShardedModel* model = nullptr;
  size_t item = 0;
  /// The owner, if the parameter is stepped as a whole.
  int whole_owner = 0;
};

using SplitParameters = std::unordered_map<const c10::TensorImpl*, SplitParameter>;

class SlicedStep {
 public:
  /// Only those split parameters that are in `stepped` take part. The others do all or none.
  SlicedStep(torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind,
             const std::unordered_set<const c10::TensorImpl*>* stepped = nullptr, bool with_others = true);
  /// Puts the parameters and their state back.
  ~SlicedStep();
  SlicedStep(const SlicedStep&) = delete;
  SlicedStep& operator=(const SlicedStep&) = delete;

 private:
  void replace(std::vector<at::Tensor>& parameters);
  at::Tensor slice_of(const at::Tensor& parameter, const SplitParameter& split);
  void move_state(const at::Tensor& from, const at::Tensor& to);

  torch::optim::Optimizer& optimizer_;
  const SplitParameters& split_;
  const StepKind kind_;
  const std::unordered_set<const c10::TensorImpl*>* stepped_;
  const bool with_others_;
  std::vector<std::vector<at::Tensor>> groups_;
  /// Parameters, and their replacements.
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> slices_;
};

/// Returns the elements of a flat parameter that this rank steps.
ShardInterval stepped_interval(const SplitParameter& split, StepKind kind);

/// Returns `tensor` (a parameter's state, whole or cut) as the flat slice of `interval`. It is no copy if it is one.
at::Tensor cut_state(const at::Tensor& tensor, int64_t whole_numel, ShardInterval interval);

/// Returns the part of a parameter's .grad() that this rank steps. Its memory may be written to if the gradient is the
/// model's own view.
at::Tensor gradient_part(const SplitParameter& split, const at::Tensor& parameter, ShardInterval interval);

}  // namespace hasten::parallel::shard
