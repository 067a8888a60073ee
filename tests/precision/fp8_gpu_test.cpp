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

}  // namespace
}  // namespace hasten::precision
