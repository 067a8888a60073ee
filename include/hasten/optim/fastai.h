// fastai's optimizers: SGD, RMSProp, Adam, RAdam, QHAdam, Larc, Lamb, Lookahead and ranger.
//
// Formulas and defaults are those of fastai.optimizer 2.8. Weight decay is decoupled (weights shrink by lr * wd first)
// unless decouple_wd is false. Names of hyper-parameters are fastai's: lr, mom, sqr_mom, eps, wd. Adam without
// Lookahead is torch::optim::AdamW (or Adam) with fastai's numbers, so that libtorch's fused kernel takes it.
// optim::Lamb and optim::Larc are Apex's.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hasten::optim::fastai {

/// Which step; see the formulas in docs/learner.md.
enum class Rule { kSgd, kRmsProp, kAdam, kRAdam, kQHAdam, kLarc, kLamb };

/// A set of hyper-parameters, in libtorch's form. Each rule reads those of its formula.
struct Options : torch::optim::OptimizerCloneableOptions<Options> {
  Options(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as libtorch's options
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, mom) = 0.9;
  TORCH_ARG(double, sqr_mom) = 0.99;
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(double, wd) = 0.0;
  /// RAdam: softplus of the denominator with this beta; 0: plus eps.
  TORCH_ARG(double, beta) = 0.0;
  TORCH_ARG(double, nu_1) = 0.7;
  TORCH_ARG(double, nu_2) = 1.0;
  TORCH_ARG(double, trust_coeff) = 0.02;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};

/// Options that all groups share.
struct Fixed {
  Rule rule = Rule::kAdam;
  /// SGD, RMSProp, Larc: gradients are averaged (a <- mom * a + g).
  bool momentum = true;
  /// False: wd * weight is added to the gradient.
  bool decouple_wd = true;
  /// Larc: the layer's rate is at most lr.
  bool clip = true;
  /// Lookahead: every k steps slow <- slow + alpha * (weight - slow) and weight <- slow; 0: no Lookahead.
  int64_t lookahead_k = 0;
  double lookahead_alpha = 0.5;
};

/// State of a parameter. Unused tensors stay undefined.
struct State : torch::optim::OptimizerCloneableParamState<State> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, grad_avg);
  TORCH_ARG(at::Tensor, sqr_avg);
  TORCH_ARG(at::Tensor, slow);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The numbers of one step of one parameter.
struct Numbers;

/// One of the rules, over the tensors of its groups.
class Optimizer : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for a negative lr, eps or wd, or a lookahead out of range.
  Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults, const Fixed& fixed);

  /// Parameters without a gradient keep their values and state.
  /// Throws: UsageError for sparse gradients; the exceptions of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const Fixed& fixed() const noexcept { return fixed_; }

 private:
  void step_one(const Options& options, const at::Tensor& parameter);
  void step_by_operators(const Options& options, const Numbers& numbers, const at::Tensor& parameter, State& state);
  Fixed fixed_;
};

/// Makes an optimizer for parameter groups; a Learner calls it with its layer groups and lr.
using Factory = std::function<std::shared_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, double lr)>;

struct SgdOptions {
  double mom = 0.0, wd = 0.0;
  bool decouple_wd = true;
};
/// Without momentum at the start there is none later either, as in fastai.
Factory sgd(const SgdOptions& options = {});

struct RmsPropOptions {
  double sqr_mom = 0.99, mom = 0.0, wd = 0.0, eps = 1e-8;
  bool decouple_wd = true;
};
Factory rms_prop(const RmsPropOptions& options = {});

struct AdamOptions {
  double mom = 0.9, sqr_mom = 0.99, eps = 1e-5, wd = 0.01;
  bool decouple_wd = true;
};
Factory adam(const AdamOptions& options = {});

struct RAdamOptions {
  double mom = 0.9, sqr_mom = 0.99, eps = 1e-5, wd = 0.0, beta = 0.0;
  bool decouple_wd = true;
};
Factory radam(const RAdamOptions& options = {});

struct QHAdamOptions {
  double mom = 0.999, sqr_mom = 0.999, nu_1 = 0.7, nu_2 = 1.0, eps = 1e-8, wd = 0.0;
  bool decouple_wd = true;
};
Factory qhadam(const QHAdamOptions& options = {});

struct LarcOptions {
  double mom = 0.9;
  bool clip = true;
  double trust_coeff = 0.02, eps = 1e-8, wd = 0.0;
  bool decouple_wd = true;
};
Factory larc(const LarcOptions& options = {});

struct LambOptions {
  double mom = 0.9, sqr_mom = 0.99, eps = 1e-5, wd = 0.0;
  bool decouple_wd = true;
};
Factory lamb(const LambOptions& options = {});

struct LookaheadOptions {
  int64_t k = 6;
  double alpha = 0.5;
};
/// Returns one of the above with slow weights, which start at the weights before the first step.
/// Throws: UsageError for an `inner` that is none of the above, when it makes one.
Factory lookahead(const Factory& inner, const LookaheadOptions& options = {});

struct RangerOptions {
  double mom = 0.95, wd = 0.01, eps = 1e-6, sqr_mom = 0.99, beta = 0.0;
  LookaheadOptions lookahead = {};
  bool decouple_wd = true;
};
/// RAdam with Lookahead.
Factory ranger(const RangerOptions& options = {});

}  // namespace hasten::optim::fastai
