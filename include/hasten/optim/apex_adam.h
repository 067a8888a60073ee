// ApexAdam: Adam and AdamW as Apex's FusedAdam, with moments in float32 whatever the parameters' dtype.
//
// Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019. Names
// and defaults are Apex's. The loops are optim/steps/rules.h's; parameters that are not on the CPU take libtorch
// operators.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <utility>
#include <vector>

namespace hasten::optim {

/// Options by Apex's names, in libtorch's form: `ApexAdamOptions(1e-3).weight_decay(0.01)`.
struct ApexAdamOptions : torch::optim::OptimizerCloneableOptions<ApexAdamOptions> {
  ApexAdamOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  /// True: weight decay is part of the update. False: it is added to the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  /// Refused, as by Apex.
  TORCH_ARG(bool, amsgrad) = false;
  /// Half-precision parameters are stepped in float32 masters, which the state holds.
  TORCH_ARG(bool, master_weights) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

/// Apex's FusedAdam.
class ApexAdam : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit ApexAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, ApexAdamOptions defaults = {});
  explicit ApexAdam(std::vector<at::Tensor> parameters, ApexAdamOptions defaults = {})
      : ApexAdam({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace hasten::optim
