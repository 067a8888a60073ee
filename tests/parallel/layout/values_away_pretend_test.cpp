// Memory of parameters that is away, for code that reads and writes past interceptors.
#include "parallel/layout/values_away.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/interception/interceptor.h"
#include "parallel/shard/trained.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;

TEST(ValuesAwayTest, AreBroughtForReadsAndWritesPastInterceptors) {
  run_ranks(2, [](auto& process) {
    const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(process.group().rank()));
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw, device);
    train(t, "mlp", 1);
    const at::Tensor parameter = t.net->first->weight;
    const auto wanted = parameter.detach().cpu().clone();
    // Others take its place in memory.
    for (int i = 0; i < 2; ++i) t.loss("mlp", i);
    const at::NoGradGuard no_grad;

    bring_values(t.net->second->weight);
    bring_values(parameter);
    {
      const interception::PassScope pass;
      EXPECT_TRUE(at::equal(parameter.detach().cpu(), wanted));
    }
    bring_values(parameter, /*writes=*/true);
    {
      const interception::PassScope pass;
      parameter.detach().mul_(2);
    }
    t.loss("mlp", 0);
    t.loss("mlp", 1);

    EXPECT_TRUE(at::equal(parameter.detach().cpu(), wanted * 2));
    process.group().barrier();
  });
}

}  // namespace
}  // namespace hasten::parallel
