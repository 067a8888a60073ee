// Golden cases of mixed precision: formulas of optimizers. Part of precision_golden_test.cpp.
#pragma once

#include "accelerator/precision_golden_weights.h"

namespace hasten::testing {
namespace {

std::unique_ptr<torch::optim::Optimizer> formula_optimizer(const json& input, std::vector<at::Tensor> parameters) {
  const auto& o = input.at("options");
  const auto rule = input.at("rule").get<std::string>();
  const double lr = o.at("lr"), decay = o.at("weight_decay");
  const auto betas = std::make_tuple(o.value("beta1", 0.9), o.value("beta2", 0.999));
  const double eps = o.value("eps", 1e-8);
  if (rule == "lamb") {
    return std::make_unique<optim::Lamb>(std::move(parameters), optim::LambOptions(lr)
                                                                    .weight_decay(decay)
                                                                    .betas(betas)
                                                                    .eps(eps)
                                                                    .bias_correction(o.at("bias_correction"))
                                                                    .adam_w_mode(o.at("adam_w_mode"))
                                                                    .grad_averaging(o.at("grad_averaging"))
                                                                    .max_grad_norm(o.at("max_grad_norm"))
                                                                    .use_nvlamb(o.at("use_nvlamb")));
  }
  if (rule == "novograd") {
    return std::make_unique<optim::NovoGrad>(std::move(parameters), optim::NovoGradOptions(lr)
                                                                        .weight_decay(decay)
                                                                        .betas(betas)
                                                                        .eps(eps)
                                                                        .bias_correction(o.at("bias_correction"))
                                                                        .grad_averaging(o.at("grad_averaging"))
                                                                        .reg_inside_moment(o.at("reg_inside_moment"))
                                                                        .norm_type(o.at("norm_type"))
                                                                        .init_zero(o.at("init_zero")));
  }
  if (rule == "adam") {
    return std::make_unique<optim::ApexAdam>(std::move(parameters), optim::ApexAdamOptions(lr)
                                                                        .weight_decay(decay)
                                                                        .betas(betas)
                                                                        .eps(eps)
                                                                        .bias_correction(o.at("bias_correction"))
                                                                        .adam_w_mode(o.at("adam_w_mode")));
  }
  return std::make_unique<optim::ApexSgd>(std::move(parameters), optim::ApexSgdOptions(lr)
                                                                     .weight_decay(decay)
                                                                     .momentum(o.at("momentum"))
                                                                     .dampening(o.at("dampening"))
                                                                     .wd_after_momentum(o.at("wd_after_momentum"))
                                                                     .nesterov(o.at("nesterov")));
}

at::Tensor values_of(const json& list) {
  return at::tensor(list.get<std::vector<double>>(), at::kDouble).to(at::kFloat);
}

bool close(const json& given, const json& wanted, double tolerance) {
  if (given.is_array()) {
    if (given.size() != wanted.size()) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!close(given[i], wanted[i], tolerance)) return false;
    }
    return true;
  }
  return std::abs(given.get<double>() - wanted.get<double>()) <= tolerance;
}

json stepped_case(const GoldenCase& golden, const std::vector<at::Tensor>& parameters,
                  torch::optim::Optimizer& optimizer, double factor) {
  json steps = json::array();
  for (const auto& gradients : golden.input.at("grads")) {
    json now = json::array();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = values_of(gradients[i]) * factor;
    optimizer.step();
    for (const auto& each : parameters) {
      const auto flat = each.detach().to(at::kDouble);
      now.push_back(std::vector<double>(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()));
    }
    steps.push_back(now);
  }
  return close(steps, golden.expected.at("params"), 1e-6) ? golden.expected : json{{"params", steps}};
}

json formula_case(const GoldenCase& golden) {
  std::vector<at::Tensor> parameters;
  for (const auto& each : golden.input.at("params")) parameters.push_back(values_of(each).requires_grad_());
  if (golden.family == "formula") {
    const auto optimizer = formula_optimizer(golden.input, parameters);
    return stepped_case(golden, parameters, *optimizer, golden.input.at("options").value("grad_scale", 1.0));
  }
  const auto& s = golden.input.at("sgd");
  const auto& l = golden.input.at("larc");
  torch::optim::SGD sgd(
      parameters,
      torch::optim::SGDOptions(s.at("lr").get<double>()).momentum(s.at("momentum")).weight_decay(s.at("weight_decay")));
  optim::Larc larc(sgd, {.trust_coefficient = l.at("trust_coefficient"), .clip = l.at("clip"), .eps = l.at("eps")});
  return stepped_case(golden, parameters, larc, 1);
}

}  // namespace
}  // namespace hasten::testing
