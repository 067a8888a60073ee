// The fused kernels on a GPU: the same values as torch::optim's own step there, also with some parameters on
// the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/optim/optimizer_step.h"
#include "support/recipes.h"

namespace hasten::optim {
namespace {

std::vector<at::Tensor> train(const nlohmann::json& spec, const PreparedOptimizerOptions& options) {
  auto generator = at::detail::createCPUGenerator(1);
  std::vector<at::Tensor> params;
  for (const c10::Device device : {c10::kCUDA, c10::kCPU, c10::kCUDA}) {
    params.push_back(at::randn({300, 201}, generator).to(device).requires_grad_());
  }
  const auto optimizer = testing::optimizer_for(spec, params);
  for (int step = 0; step < 10; ++step) {
    for (const auto& param : params) {
      param.mutable_grad() = at::randn({300, 201}, generator).to(param.device());
    }
    optimizer_step(*optimizer, options);
  }
  return params;
}

TEST(OptimizerStepGpu, GivesWhatTorchOptimGives) {
  ASSERT_TRUE(at::hasCUDA()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  for (const char* spec :
       {R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": true})",
        R"({"type": "Adam", "lr": 0.01, "amsgrad": true, "weight_decay": 0.1})",
        R"({"type": "AdamW", "lr": 0.01})", R"({"type": "Adagrad", "lr": 0.1, "lr_decay": 0.1})"}) {
    for (const bool maximize : {false, true}) {
      const auto fused = train(nlohmann::json::parse(spec), {.maximize = maximize});
      const auto plain = train(nlohmann::json::parse(spec), {.fused = false, .maximize = maximize});
      for (size_t i = 0; i < fused.size(); ++i) {
        EXPECT_TRUE(torch::allclose(fused[i], plain[i], 1e-6, 1e-6)) << spec << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace hasten::optim
