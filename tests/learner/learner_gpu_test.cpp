// A Learner on a GPU.
#include "hasten/learner/learner.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/device_models.h"

namespace hasten::learner {
namespace {

class LearnerGpu : public testing::OnGpu {};

TEST_F(LearnerGpu, AFitTrainsOnTheGpu) {
  const testing::SmallData data(256);
  std::vector<Batch> batches;
  for (int i = 0; i < 8; ++i) {
    batches.push_back(Batch{{data.x.narrow(0, 32 * i, 32)}, {data.y.narrow(0, 32 * i, 32)}});
  }
  Loaders loaders;
  loaders.train = batches;
  loaders.loss = cross_entropy();
  auto net = testing::small_net();
  const auto before = testing::values_of(net->parameters());

  Learner learn(loaders, net.ptr(), LearnerOptions{});
  learn.fit(1, 1e-2);

  EXPECT_TRUE(net->parameters()[0].is_cuda());
  EXPECT_FALSE(testing::values_of(net->parameters())[0].equal(before[0]));
}

TEST_F(LearnerGpu, BatchesInMemoryArePinnedOnceAndSentWithoutAWait) {
  if (!testing::is_pretend()) GTEST_SKIP() << "copies are counted on the pretend device";
  const testing::SmallData data(64);
  Loaders loaders;
  loaders.train = std::vector<Batch>(4, Batch{{data.x}, {data.y}});
  loaders.loss = cross_entropy();
  auto net = testing::small_net();
  Learner learn(loaders, net.ptr(), LearnerOptions{});
  learn.fit(1, 1e-2);

  const auto* counts = testing::pretend::counts();
  const auto late = counts->late_copies;
  learn.fit(1, 1e-2);

  EXPECT_GE(counts->late_copies - late, 8);
}

}  // namespace
}  // namespace hasten::learner
