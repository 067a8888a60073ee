// Balanced stages: equal to trying all cuts.
#include "hasten/plan/balance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::ElementsAre;

double squares(const std::vector<double>& costs, const std::vector<size_t>& begins) {
  double sum = 0;
  for (size_t k = 0; k < begins.size(); ++k) {
    double stage = 0;
    for (size_t i = begins[k]; i < (k + 1 < begins.size() ? begins[k + 1] : costs.size()); ++i) stage += costs[i];
    sum += stage * stage;
  }
  return sum;
}

// (maximum, sum of squares) of the best cut, by trying each.
std::pair<double, double> tried(const std::vector<double>& costs, int stages) {
  std::pair<double, double> best{1e300, 1e300};
  for (unsigned cuts = 0; cuts < 1u << (costs.size() - 1); ++cuts) {
    std::vector<size_t> begins = {0};
    for (size_t i = 1; i < costs.size(); ++i) {
      if ((cuts >> (i - 1)) & 1) begins.push_back(i);
    }
    if (begins.size() == static_cast<size_t>(stages))
      best = std::min(best, {largest_stage(costs, begins), squares(costs, begins)});
  }
  return best;
}

TEST(Balance, equals_trying_all_cuts) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    std::vector<double> costs(1 + random() % 11);
    for (double& cost : costs) cost = static_cast<double>(random() % 9);
    const int stages = 1 + static_cast<int>(random() % costs.size());
    const auto begins = balance(costs, stages);
    const auto best = tried(costs, stages);
    ASSERT_EQ(begins.size(), static_cast<size_t>(stages));
    EXPECT_EQ(begins.front(), 0u);
    EXPECT_TRUE(std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>()) == begins.end());
    EXPECT_DOUBLE_EQ(largest_stage(costs, begins), best.first);
    EXPECT_DOUBLE_EQ(squares(costs, begins), best.second);
  }
}

TEST(Balance, equal_items_give_even_stages) {
  EXPECT_THAT(balance(std::vector<double>(7, 1.0), 3), ElementsAre(0, ::testing::_, ::testing::_));
  EXPECT_DOUBLE_EQ(squares(std::vector<double>(7, 1.0), balance(std::vector<double>(7, 1.0), 3)), 9 + 4 + 4);
  EXPECT_THAT(balance({5, 1, 1, 1}, 2), ElementsAre(0, 1));
  EXPECT_THAT(balance({0, 0, 0}, 3), ElementsAre(0, 1, 2));
}

TEST(Balance, what_cannot_be_cut_is_refused) {
  EXPECT_THROW(balance({1, 2}, 3), UsageError);
  EXPECT_THROW(balance({1, 2}, 0), UsageError);
  EXPECT_THROW(balance({1, -2}, 1), UsageError);
}

}  // namespace
}  // namespace hasten::plan
