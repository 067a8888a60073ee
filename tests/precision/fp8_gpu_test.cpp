// fp8 on a GPU, and the facts that choose kernels there.
#include "hasten/precision/fp8.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/precision/device_facts.h"
#include "support/device.h"

namespace hasten::precision {
namespace {

using testing::kGpu;

class Fp8Gpu : public testing::OnGpu {};

TEST_F(Fp8Gpu, TheGpusCapabilityIsKnown) {
  if (testing::is_pretend()) GTEST_SKIP() << "the pretend device has no CUDA runtime";
  EXPECT_GE(device_facts(kGpu).capability, 70) << describe(device_facts(kGpu));
}

TEST_F(Fp8Gpu, ProductsAreNearThoseOfFloat32) {
  const auto facts = device_facts(kGpu);
  if (facts.capability > 0 && facts.capability < 89) GTEST_SKIP() << describe(facts);
  const auto x = torch::randn({64, 128}, kGpu).to(at::kBFloat16), w = torch::randn({96, 128}, kGpu);
  for (const auto recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise}) {
    const auto y = fp8_linear(x, w, {.recipe = recipe}).to(at::kFloat), exact = x.to(at::kFloat).mm(w.t());
    EXPECT_LT(((y - exact).norm() / exact.norm()).item<double>(), 0.08);
  }
}

TEST_F(Fp8Gpu, DelayedScalesAreReadOnceAtTheEndOfTheWindow) {
  const auto facts = device_facts(kGpu);
  if (facts.capability > 0 && facts.capability < 89) GTEST_SKIP() << describe(facts);
  const Fp8Options options{.recipe = Fp8Recipe::kDelayed, .amax_history_len = 4};
  const auto x = torch::randn({64, 128}, kGpu).to(at::kBFloat16);
  const auto w = torch::randn({96, 128}, kGpu).requires_grad_();
  DelayedScales first, second;
  const auto step = [&] {
    for (auto* scales : {&first, &second}) fp8_linear(x, w, options, scales).sum().backward();
  };
  step();

  EXPECT_EQ(testing::waits_of(step), 0);
  EXPECT_LE(testing::waits_of([&] { collect_amax({&first, &second}); }), 1);

  EXPECT_EQ(second.input_amax, x.abs().max().to(at::kFloat).item<float>());
  EXPECT_EQ(second.weight_amax, w.abs().max().item<float>());
  EXPECT_EQ(second.gradient_amax, 1.0F);
  EXPECT_FALSE(second.device_amax.defined());
}

}  // namespace
}  // namespace hasten::precision
