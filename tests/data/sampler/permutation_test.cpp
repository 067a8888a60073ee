// Orders as pure functions: every sample once, the same for the same seed and epoch, another for another.
#include "hasten/data/sampler/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace hasten::data {
namespace {

Indices all_of(const KeyedPermutation& order) {
  Indices values(order.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = order[i];
  return values;
}

TEST(KeyedPermutation, GivesEveryValueOnceAtAnySize) {
  for (size_t size : {0, 1, 2, 3, 4, 5, 7, 16, 127, 128, 129, 255, 256, 257, 1000, 4096, 65537}) {
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
      Indices values = all_of(KeyedPermutation(size, 42, epoch));

      std::sort(values.begin(), values.end());
      for (size_t i = 0; i < size; ++i) ASSERT_EQ(values[i], i) << "size " << size << ", epoch " << epoch;
    }
  }
}

TEST(KeyedPermutation, IsAnotherOneForAnotherSeedOrEpoch) {
  std::set<Indices> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t epoch = 0; epoch < 8; ++epoch) orders.insert(all_of(KeyedPermutation(50, seed, epoch)));
  }

  EXPECT_EQ(orders.size(), 64u);
  EXPECT_EQ(all_of(KeyedPermutation(50, 3, 4)), all_of(KeyedPermutation(50, 3, 4)));
}

TEST(KeyedPermutation, OfThreeSamplesEveryOrderComesAboutEquallyOften) {
  std::map<Indices, int> seen;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) ++seen[all_of(KeyedPermutation(3, 1, epoch))];

  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 150);
}

TEST(KeyedPermutation, PutsEverySampleEverywhereAboutEquallyOften) {
  constexpr size_t kSize = 10, kEpochs = 10000;
  std::vector<std::vector<double>> counts(kSize, std::vector<double>(kSize));
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const KeyedPermutation order(kSize, 9, epoch);
    for (size_t i = 0; i < kSize; ++i) ++counts[i][order[i]];
  }

  double chi_squared = 0;
  for (const auto& row : counts) {
    for (const double count : row) chi_squared += (count - 1000) * (count - 1000) / 1000;
  }
  EXPECT_LT(chi_squared, 135) << "81 degrees of freedom: 135 is exceeded once in 10,000 times";
}

TEST(KeyedPermutation, NeighboursDoNotStayTogether) {
  const KeyedPermutation order(100000, 5, 0);
  size_t ascents = 0, near = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    const size_t a = order[i], b = order[i + 1];
    if (a < b) ++ascents;
    if ((a > b ? a - b : b - a) < 100) ++near;
  }

  EXPECT_NEAR(static_cast<double>(ascents), 50000, 1000);
  EXPECT_NEAR(static_cast<double>(near), 200, 60);
}

TEST(KeyedPermutation, ReachesPositionsBeyondAnyMemory) {
  const size_t size = size_t{1} << 50;
  const KeyedPermutation order(size, 1, 2);
  std::set<size_t> values;
  for (size_t i = 0; i < 1000; ++i) values.insert(order[size - 1 - i]);

  EXPECT_EQ(values.size(), 1000u);
  EXPECT_LT(*values.rbegin(), size);
}

TEST(KeyedDraw, CoversItsRangeEvenly) {
  std::vector<int> counts(7);
  for (uint64_t position = 0; position < 70000; ++position) ++counts.at(keyed_draw(7, 3, 1, position));

  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(KeyedDraw, UniformNumbersLieBelowOne) {
  double sum = 0;
  for (uint64_t position = 0; position < 10000; ++position) {
    const double value = keyed_uniform(0, 0, position);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }

  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(TorchPermutation, IsFixedBySeed) {
  EXPECT_EQ(torch_permutation(7, 0), torch_permutation(7, 0));
  EXPECT_NE(torch_permutation(50, 0), torch_permutation(50, 1));
  EXPECT_TRUE(torch_permutation(0, 3).empty());
}

}  // namespace
}  // namespace hasten::data
