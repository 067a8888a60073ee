// NovoGrad: adaptive moments with one second moment a parameter tensor (Apex's FusedNovoGrad).
//
// Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep Networks", 2019.
// Formulas, names and defaults are Apex's. The loops are optim/steps/rules.h's; parameters that are not on the CPU take
// libtorch operators.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <utility>
#include <vector>

namespace hasten::optim {

/// Options by Apex's names, in libtorch's form: `NovoGradOptions(1e-3).weight_decay(0.01)`.
struct NovoGradOptions : torch::optim::OptimizerCloneableOptions<NovoGradOptions> {
  NovoGradOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  /// Weight decay enters the first moment; false: it is part of the update.
  TORCH_ARG(bool, reg_inside_moment) = false;
  /// Gradients enter the first moment with weight 1 - beta1; false: with weight 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// 2: the 2-norm. 0: the largest magnitude.
  TORCH_ARG(int64_t, norm_type) = 2;
  /// The second moment begins at 0; false: at the first gradient's norm.
  TORCH_ARG(bool, init_zero) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

/// Apex's FusedNovoGrad.
class NovoGrad : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit NovoGrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, NovoGradOptions defaults = {});
  explicit NovoGrad(std::vector<at::Tensor> parameters, NovoGradOptions defaults = {})
      : NovoGrad({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace hasten::optim
