// The optimizers that a DeepSpeed configuration names beside libtorch's: Lion and Lamb, with DeepSpeed's numbers.
//
// Lion (Chen et al., 2023) steps each element by itself, so slices of a sharded parameter give the bits of the whole.
// Lamb (You et al., 2019) is DeepSpeed's FusedLamb: bias corrections in the rate, and the ratio of norms between two
// limits. It needs whole parameters. For Apex's FusedLAMB see lamb.h.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <utility>
#include <vector>

namespace hasten::optim::deepspeed {

struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

class Lion : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, LionOptions defaults = {});
  explicit Lion(std::vector<at::Tensor> parameters, LionOptions defaults = {})
      : Lion({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, eps_inside_sqrt) = false;
  /// Limits of the ratio of norms by which a parameter's update counts.
  TORCH_ARG(double, max_coeff) = 10;
  TORCH_ARG(double, min_coeff) = 0.01;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

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

}  // namespace hasten::optim::deepspeed
