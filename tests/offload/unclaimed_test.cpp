// Models that two would place: each is refused by the parameter's name, who has it, and the remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "hasten/offload/load/is_dispatched.h"
#include "hasten/offload/load/placement.h"
#include "offload/stack_net.h"

namespace hasten::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Unclaimed : public StackInFile {};

TEST_F(Unclaimed, ADispatchedModelIsNotPlacedAgainBeforeItIsUndispatched) {
  const auto model = load(limited());
  auto net = model;
  const auto refused = AllOf(HasSubstr("'layers."), HasSubstr("by a device map"), HasSubstr("undispatch"));

  EXPECT_TRUE(is_dispatched(model.module()));
  EXPECT_THAT(testing::words_of<UsageError>([&] {
                dispatch_model(net.model(), DeviceMap{{"", "cpu"}});
              }),
              AllOf(HasSubstr("dispatch_model"), refused));
  EXPECT_THAT(testing::words_of<UsageError>([&] { cpu_offload(net.model()); }),
              AllOf(HasSubstr("cpu_offload"), refused));
  EXPECT_THAT(testing::words_of<UsageError>([&] { disk_offload(net.model(), path("folder")); }),
              AllOf(HasSubstr("disk_offload"), refused));
  EXPECT_THAT(testing::words_of<UsageError>([&] { place(net.model(), Placement{}); }),
              AllOf(HasSubstr("place"), refused));
  EXPECT_THAT(testing::words_of<UsageError>([&] { cpu_offload_with_hook(net.model(), at::kCPU, nullptr, nullptr); }),
              AllOf(HasSubstr("cpu_offload_with_hook"), refused));

  undispatch(model.module());
  EXPECT_FALSE(is_dispatched(model.module()));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::same_values(dispatch_model(net.model(), DeviceMap{{"", "cpu"}})(x_), wanted_));
}

}  // namespace
}  // namespace hasten::offload
