// Schedulers and optimizers from their description in JSON, as scheduler_reference.json and the golden
// scheduler.json have it: PyTorch's class name and arguments.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/optim/schedulers/schedulers.h"

namespace hasten::optim::testing {

using nlohmann::json;

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> grouped(const std::vector<double>& rates, Options options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    options.set_lr(rate);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}, torch::requires_grad())},
                        std::make_unique<Options>(options));
  }
  return std::make_unique<Optimizer>(groups, options);
}

/// An optimizer with a group of one parameter for each rate.
inline std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name,
                                                             const std::vector<double>& rates) {
  namespace peer = torch::optim;
  if (name == "SGD") return grouped<peer::SGD>(rates, peer::SGDOptions(1.0).momentum(0.9));
  if (name == "Adam") return grouped<peer::Adam>(rates, peer::AdamOptions(1.0));
  if (name == "AdamW") return grouped<peer::AdamW>(rates, peer::AdamWOptions(1.0));
  if (name == "RMSprop") return grouped<peer::RMSprop>(rates, peer::RMSpropOptions(1.0).momentum(0.9));
  if (name == "Adagrad") return grouped<peer::Adagrad>(rates, peer::AdagradOptions(1.0));
  throw std::runtime_error("no optimizer " + name);
}

inline std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

/// SGD's momentum or Adam's beta1, of each group.
inline std::vector<double> momenta_of(torch::optim::Optimizer& optimizer) {
  namespace peer = torch::optim;
  std::vector<double> momenta;
  for (auto& group : optimizer.param_groups()) {
    auto* options = &group.options();
    if (auto* sgd = dynamic_cast<peer::SGDOptions*>(options)) momenta.push_back(sgd->momentum());
    if (auto* rmsprop = dynamic_cast<peer::RMSpropOptions*>(options)) momenta.push_back(rmsprop->momentum());
    if (auto* adam = dynamic_cast<peer::AdamOptions*>(options)) momenta.push_back(std::get<0>(adam->betas()));
    if (auto* adamw = dynamic_cast<peer::AdamWOptions*>(options)) {
      momenta.push_back(std::get<0>(adamw->betas()));
    }
  }
  return momenta;
}

inline PerGroup<double> per_group(const json& value) {
  if (value.is_array()) return value.get<std::vector<double>>();
  return value.get<double>();
}

inline Recipe recipe_of(const json& spec);

inline std::vector<Recipe> recipes_of(const json& specs) {
  std::vector<Recipe> recipes;
  for (const auto& spec : specs) recipes.push_back(recipe_of(spec));
  return recipes;
}

inline Recipe lambda_of(const json& spec) {
  const std::string type = spec.at("type");
  if (spec.contains("bases")) {
    const bool power = type == "LambdaLR";
    std::vector<LrLambda> lambdas;
    for (const double base : spec.at("bases")) {
      lambdas.push_back([base, power](int64_t s) { return power ? std::pow(base, s) : base; });
    }
    if (power) return recipe<LambdaLR>({.lr_lambda = lambdas});
    return recipe<MultiplicativeLR>({.lr_lambda = lambdas});
  }
  const bool linear = type == "LambdaLR_linear_warmup";
  const double warmup = spec.at("warmup"), total = spec.at("total");
  return recipe<LambdaLR>({.lr_lambda = [=](int64_t step) {
    const auto s = static_cast<double>(step);
    if (s < warmup) return s / std::max(1.0, warmup);
    const double rest = std::max(1.0, total - warmup);
    if (linear) return std::max(0.0, (total - s) / rest);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * (s - warmup) / rest)));
  }});
}

inline Recipe cyclic_of(const json& spec) {
  const std::string mode = spec.value("mode", "triangular");
  CyclicLROptions options{
      .base_lr = per_group(spec.at("base_lr")),
      .max_lr = per_group(spec.at("max_lr")),
      .step_size_up = spec.value("step_size_up", 2000),
      .mode = mode == "exp_range"     ? CyclicMode::kExpRange
              : mode == "triangular2" ? CyclicMode::kTriangular2
                                      : CyclicMode::kTriangular,
      .gamma = spec.value("gamma", 1.0),
      .scale_mode = spec.value("scale_mode", "cycle") == "cycle" ? ScaleMode::kCycle : ScaleMode::kIterations,
      .cycle_momentum = spec.value("cycle_momentum", true),
      .base_momentum = spec.value("base_momentum", 0.8),
      .max_momentum = spec.value("max_momentum", 0.9)};
  if (spec.contains("step_size_down")) options.step_size_down = spec.at("step_size_down").get<int64_t>();
  if (spec.contains("scale_fn")) {
    options.scale_fn = [](double x) { return 0.5 * (1.0 + std::sin(x * std::numbers::pi / 2.0)); };
  }
  return recipe<CyclicLR>(options);
}

inline Recipe one_cycle_of(const json& spec) {
  OneCycleLROptions options{
      .max_lr = per_group(spec.at("max_lr")),
      .pct_start = spec.value("pct_start", 0.3),
      .anneal_strategy = spec.value("anneal_strategy", "cos") == "cos" ? AnnealStrategy::kCos : AnnealStrategy::kLinear,
      .cycle_momentum = spec.value("cycle_momentum", true),
      .base_momentum = spec.value("base_momentum", 0.85),
      .max_momentum = spec.value("max_momentum", 0.95),
      .div_factor = spec.value("div_factor", 25.0),
      .final_div_factor = spec.value("final_div_factor", 1e4),
      .three_phase = spec.value("three_phase", false)};
  if (spec.contains("total_steps")) options.total_steps = spec.at("total_steps").get<int64_t>();
  if (spec.contains("epochs")) options.epochs = spec.at("epochs").get<int64_t>();
  if (spec.contains("steps_per_epoch")) options.steps_per_epoch = spec.at("steps_per_epoch").get<int64_t>();
  return recipe<OneCycleLR>(options);
}

inline Recipe recipe_of(const json& spec) {
  const std::string type = spec.at("type");
  if (type.starts_with("LambdaLR") || type == "MultiplicativeLR") return lambda_of(spec);
  if (type == "CyclicLR") return cyclic_of(spec);
  if (type == "OneCycleLR") return one_cycle_of(spec);
  if (type == "StepLR") {
    return recipe<StepLR>({.step_size = spec.at("step_size"), .gamma = spec.value("gamma", 0.1)});
  }
  if (type == "MultiStepLR") {
    return recipe<MultiStepLR>({.milestones = spec.at("milestones"), .gamma = spec.value("gamma", 0.1)});
  }
  if (type == "ConstantLR") {
    return recipe<ConstantLR>({.factor = spec.value("factor", 1.0 / 3), .total_iters = spec.value("total_iters", 5)});
  }
  if (type == "LinearLR") {
    return recipe<LinearLR>({.start_factor = spec.value("start_factor", 1.0 / 3),
                             .end_factor = spec.value("end_factor", 1.0),
                             .total_iters = spec.value("total_iters", 5)});
  }
  if (type == "ExponentialLR") return recipe<ExponentialLR>({.gamma = spec.at("gamma")});
  if (type == "PolynomialLR") {
    return recipe<PolynomialLR>({.total_iters = spec.value("total_iters", 5), .power = spec.value("power", 1.0)});
  }
  if (type == "CosineAnnealingLR") {
    return recipe<CosineAnnealingLR>({.T_max = spec.at("T_max"), .eta_min = spec.value("eta_min", 0.0)});
  }
  if (type == "CosineAnnealingWarmRestarts") {
    return recipe<CosineAnnealingWarmRestarts>(
        {.T_0 = spec.at("T_0"), .T_mult = spec.value("T_mult", 1), .eta_min = spec.value("eta_min", 0.0)});
  }
  if (type == "SequentialLR") {
    return recipe<SequentialLR>({.schedulers = recipes_of(spec.at("schedulers")), .milestones = spec.at("milestones")});
  }
  if (type == "ChainedScheduler") {
    return recipe<ChainedScheduler>({.schedulers = recipes_of(spec.at("schedulers"))});
  }
  if (type == "WarmupLR") {
    return recipe<WarmupLR>({.total_iters = spec.at("total_iters"),
                             .start_factor = spec.at("start_factor"),
                             .end_factor = spec.at("end_factor"),
                             .after = spec.contains("after") ? recipe_of(spec.at("after")) : Recipe()});
  }
  throw std::runtime_error("no scheduler " + type);
}

inline ReduceLROnPlateauOptions plateau_of(const json& spec) {
  return {.mode = spec.value("mode", "min") == "min" ? PlateauMode::kMin : PlateauMode::kMax,
          .factor = spec.value("factor", 0.1),
          .patience = spec.value("patience", 10),
          .threshold = spec.value("threshold", 1e-4),
          .threshold_mode = spec.value("threshold_mode", "rel") == "rel" ? ThresholdMode::kRel : ThresholdMode::kAbs,
          .cooldown = spec.value("cooldown", 0),
          .min_lr = per_group(spec.value("min_lr", json(0.0))),
          .eps = spec.value("eps", 1e-8)};
}

}  // namespace hasten::optim::testing
