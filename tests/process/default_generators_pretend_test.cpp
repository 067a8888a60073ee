// The generators that one rank's operators draw from: states of a seed, taken and set.
#include "hasten/process/default_generators.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "support/device.h"

namespace hasten::process {
namespace {

TEST(DefaultGeneratorsTest, StatesOfASeedLeaveTheGeneratorsAsTheyAre) {
  DefaultGenerators generators(testing::kGpu);
  const auto draw = [] { return at::rand({8}, at::TensorOptions(testing::kGpu)).cpu(); };
  const auto before = generators.states();
  ASSERT_EQ(before.size(), 2U);
  const at::Tensor wanted = draw();
  generators.set_states(before);

  const auto of_seed = generators.states_of_seed(5);
  EXPECT_TRUE(at::equal(draw(), wanted));

  generators.set_states(of_seed);
  const at::Tensor seeded = draw();
  EXPECT_FALSE(at::equal(seeded, wanted));
  generators.set_states(of_seed);
  EXPECT_TRUE(at::equal(draw(), seeded));
  EXPECT_EQ(DefaultGenerators(c10::Device(at::kCPU)).states().size(), 1U);
}

}  // namespace
}  // namespace hasten::process
