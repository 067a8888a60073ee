#include "hasten/data/sampler/detail/sample_random.h"

#include <gtest/gtest.h>

#include <set>

namespace hasten::data {
namespace {

TEST(SampleRandom, IsAFunctionOfSeedEpochAndIndex) {
  std::set<uint64_t> firsts;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) {
      for (uint64_t index = 0; index < 10; ++index) {
        EXPECT_EQ(SampleRandom(seed, epoch, index).next(), SampleRandom(seed, epoch, index).next());
        firsts.insert(SampleRandom(seed, epoch, index).next());
      }
    }
  }

  EXPECT_EQ(firsts.size(), 1000u) << "the three are not interchangeable";
}

TEST(SampleRandom, NeverChangesBetweenReleases) {
  SampleRandom random(1, 2, 3);

  EXPECT_EQ(random.next(), 2399657773382937285u);
  EXPECT_EQ(random.next(), 8067101194408944102u);
}

TEST(SampleRandom, IsEvenlySpread) {
  double sum = 0;
  int low = 0;
  for (uint64_t index = 0; index < 20000; ++index) {
    SampleRandom random(0, 0, index);
    const double value = random.uniform(-1, 3);
    EXPECT_TRUE(value >= -1 && value < 3);
    sum += value;
    const uint64_t below = random.below(5);
    EXPECT_LT(below, 5u);
    low += below == 0;
  }

  EXPECT_NEAR(sum / 20000, 1, 0.05);
  EXPECT_NEAR(low, 4000, 250);
  EXPECT_EQ(SampleRandom(0, 0, 0).below(0), 0u);
}

}  // namespace
}  // namespace hasten::data
