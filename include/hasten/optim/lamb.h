// Lamb: layer-wise adaptive moments, for large batches (Apex's FusedLAMB and FusedMixedPrecisionLamb).
//
// You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020. Formulas, names and
// defaults are Apex's. The loops are optim/steps/rules.h's; parameters that are not on the CPU take libtorch operators.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <utility>
#include <vector>

namespace hasten::optim {

/// Options by Apex's names, in libtorch's form: `LambOptions(1e-3).weight_decay(0.01)`.
struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, bias_correction) = true;
  /// True: weight decay is part of the update. False: it is added to the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  /// Gradients enter the first moment with weight 1 - beta1; false: with weight 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// All gradients together are clipped to this norm; 0: not.
  TORCH_ARG(double, max_grad_norm) = 1;
  /// The trust ratio applies to groups without weight decay as well.
  TORCH_ARG(bool, use_nvlamb) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

/// Apex's FusedLAMB.
class Lamb : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults = {});
  explicit Lamb(std::vector<at::Tensor> parameters, LambOptions defaults = {})
      : Lamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace hasten::optim
