// A number on the device is read when it is there; logging it does not wait.
#include "hasten/training/deferred_scalar.h"

#include <gtest/gtest.h>

#include "support/device.h"

namespace hasten::training {
namespace {

class DeferredScalarGpu : public testing::OnGpu {};

TEST_F(DeferredScalarGpu, LoggingANumberOfTheDeviceDoesNotWait) {
  const auto loss = torch::full({}, 3.5, testing::kGpu);
  EXPECT_EQ(testing::waits_of([&] { (void)tracking::ValueOf<at::Tensor>::make(loss); }), 0);
}

}  // namespace
}  // namespace hasten::training
