// ApexSgd: SGD as Apex's FusedSGD: weight decay before or after the momentum.
//
// Names and defaults are Apex's; materialize_master_grads has no counterpart, since gradients are read as they are. The
// loops are optim/steps/rules.h's; parameters that are not on the CPU take libtorch operators.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <utility>
#include <vector>

namespace hasten::optim {

/// Options by Apex's names, in libtorch's form: `ApexSgdOptions(1e-3).weight_decay(0.01)`.
struct ApexSgdOptions : torch::optim::OptimizerCloneableOptions<ApexSgdOptions> {
  ApexSgdOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  /// Needs momentum and no dampening.
  TORCH_ARG(bool, nesterov) = false;
  /// Weight decay is added to the update and does not enter the momentum.
  TORCH_ARG(bool, wd_after_momentum) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

/// Apex's FusedSGD. The momentum is the gradient in a parameter's first step.
class ApexSgd : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit ApexSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups, ApexSgdOptions defaults = {});
  explicit ApexSgd(std::vector<at::Tensor> parameters, ApexSgdOptions defaults = {})
      : ApexSgd({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace hasten::optim
