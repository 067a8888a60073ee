// optimizer_step against PyTorch's optimizers, in each of its ways. The values are in
// optimizer_reference.json, written by make_optimizer_reference.py.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "hasten/optim/steps/optimizer_step.h"
#include "optim/steps/multi_tensor_step.h"
#include "support/recipes.h"
#include "support/sources.h"

namespace hasten::optim {
namespace {

using nlohmann::json;

json optimizer_reference() {
  std::ifstream file(hasten::testing::tests_folder() / "optim" / "steps" / "optimizer_reference.json");
  return json::parse(file);
}

at::Tensor range(int64_t count) {
  return torch::arange(count, at::kDouble);
}

std::vector<at::Tensor> parameters(const json& shapes) {
  std::vector<at::Tensor> params;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const auto shape = shapes[k].get<std::vector<int64_t>>();
    const at::Tensor values = range(c10::multiply_integers(shape)).add(static_cast<double>(k)).cos();
    params.push_back(values.reshape(shape).requires_grad_());
  }
  return params;
}

void set_gradients(const std::vector<at::Tensor>& params, int64_t step) {
  for (size_t k = 0; k < params.size(); ++k) {
    const auto shift = 0.3 * static_cast<double>(step) + static_cast<double>(k);
    const at::Tensor grad = (1.7 * range(params[k].numel()) + shift).sin().reshape(params[k].sizes());
    params[k].mutable_grad() = k == 1 && step % 3 == 0 ? at::Tensor() : grad;
  }
}

double largest_difference(const at::Tensor& param, const json& wanted) {
  const at::Tensor values = torch::tensor(wanted.get<std::vector<double>>(), at::kDouble);
  return (param.detach().flatten() - values).abs().max().item<double>();
}

enum class Way { kFused, kForeach, kPlain };

void step_in(Way way, torch::optim::Optimizer& optimizer, bool maximize) {
  if (way != Way::kForeach) {
    optimizer_step(optimizer, {.fused = way == Way::kFused, .maximize = maximize});
    return;
  }
  const auto everywhere = [](c10::Device) { return true; };
  detail::optimizer_step(optimizer, {.fused = false, .foreach_on = everywhere, .maximize = maximize});
}

class OptimizerReference : public ::testing::TestWithParam<Way> {};

TEST_P(OptimizerReference, EveryOptimizerGivesPyTorchsValues) {
  const json all = optimizer_reference();
  size_t rows = 0;
  for (const auto& one : all.at("cases")) {
    const auto params = parameters(all.at("shapes"));
    const auto optimizer = hasten::testing::optimizer_for(one.at("optimizer"), params);
    const auto steps = all.at("steps").get<std::vector<int64_t>>();

    for (int64_t step = 1, row = 0; step <= steps.back(); ++step) {
      set_gradients(params, step);
      step_in(GetParam(), *optimizer, one.at("optimizer").at("maximize"));
      if (step != steps[static_cast<size_t>(row)]) continue;
      for (size_t k = 0; k < params.size(); ++k, ++rows) {
        EXPECT_LT(largest_difference(params[k], one.at("values")[static_cast<size_t>(row)][k]), 1e-9)
            << one.at("optimizer") << ", step " << step << ", parameter " << k;
      }
      ++row;
    }
  }
  std::cout << "optimizer reference: " << rows << " values of parameters\n";
  EXPECT_EQ(rows, all.at("cases").size() * 5 * 2);
}

std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  constexpr const char* kNames[] = {"Fused", "Foreach", "Plain"};
  return kNames[static_cast<int>(way.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, OptimizerReference, ::testing::Values(Way::kFused, Way::kForeach, Way::kPlain), name_of);

}  // namespace
}  // namespace hasten::optim
