// The fused kernels and the foreach steps on a GPU: the same values as torch::optim's own step there, also
// with some parameters on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/optim/steps/optimizer_step.h"
#include "optim/stepping.h"
#include "support/recipes.h"

namespace hasten::optim {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;

constexpr PreparedOptimizerOptions kOnlyForeach{.fused = false, .foreach = true};

const char* const kSpecs[] = {R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": true})",
                              R"({"type": "Adam", "lr": 0.01, "amsgrad": true, "weight_decay": 0.1})",
                              R"({"type": "AdamW", "lr": 0.01})",
                              R"({"type": "Adagrad", "lr": 0.1, "lr_decay": 0.1})",
                              R"({"type": "RMSprop", "lr": 0.01, "weight_decay": 0.1})",
                              R"({"type": "RMSprop", "lr": 0.01, "momentum": 0.5, "centered": true})"};

Tensors train(const char* spec, PreparedOptimizerOptions options, at::ScalarType dtype = at::kFloat) {
  auto generator = at::detail::createCPUGenerator(1);
  Tensors params;
  for (const c10::Device device : {c10::kCUDA, c10::kCPU, c10::kCUDA}) {
    params.push_back(at::randn({300, 201}, generator).to(device, dtype).requires_grad_());
  }
  const auto optimizer = testing::optimizer_for(json::parse(spec), params);
  for (int step = 0; step < 10; ++step) {
    for (const auto& param : params) {
      param.mutable_grad() = at::randn({300, 201}, generator).to(param.device(), dtype);
    }
    optimizer_step(*optimizer, options);
  }
  return params;
}

TEST(OptimizerStepGpu, GivesWhatTorchOptimGives) {
  ASSERT_TRUE(at::hasCUDA()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  for (const char* spec : kSpecs) {
    for (const bool maximize : {false, true}) {
      const auto plain = train(spec, {.fused = false, .maximize = maximize});
      for (auto options : {PreparedOptimizerOptions{}, kOnlyForeach}) {
        SCOPED_TRACE(spec);
        options.maximize = maximize;
        expect_near(train(spec, options), plain);
      }
    }
  }
}

TEST(OptimizerStepGpu, HalfPrecisionIsSteppedAsTorchOptimStepsItToItsRounding) {
  ASSERT_TRUE(at::hasCUDA()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  for (const char* spec : kSpecs) {
    const auto foreach = train(spec, {}, at::kBFloat16);
    const auto plain = train(spec, {.fused = false}, at::kBFloat16);
    for (size_t i = 0; i < foreach.size(); ++i) {
      EXPECT_TRUE(torch::allclose(foreach[i], plain[i], 0.02, 0.02)) << spec << ' ' << i;
    }
  }
}

TEST(OptimizerStepGpu, TakesForeachWhereThereIsNoFusedKernelAndWasNotForbidden) {
  ASSERT_TRUE(at::hasCUDA()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  const Tensors params = {torch::ones({4, 3}, at::kCUDA).requires_grad_(),
                          torch::ones({4, 3}, at::TensorOptions(at::kCUDA).dtype(at::kHalf)).requires_grad_()};
  torch::optim::Adam adam(params);
  for (const auto& param : params) param.mutable_grad() = torch::ones_like(param);

  const auto unset = operators_of([&] { optimizer_step(adam); });
  const auto forbidden = operators_of([&] { optimizer_step(adam, {.foreach = false}); });
  const auto own = operators_of([&] { optimizer_step(adam, {.fused = false}); });

  EXPECT_THAT(unset, Contains(Key("aten::_fused_adam_")));
  EXPECT_THAT(unset, Contains(Key("aten::_foreach_addcdiv_")));
  EXPECT_THAT(forbidden, Contains(Key("aten::_fused_adam_")));
  EXPECT_THAT(forbidden, Not(Contains(Key("aten::_foreach_addcdiv_"))));
  EXPECT_THAT(own, Not(Contains(Key("aten::_foreach_addcdiv_"))));
}

}  // namespace
}  // namespace hasten::optim
