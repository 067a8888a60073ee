#include "hasten/parallel/shard/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

using ::testing::ElementsAre;

std::vector<ShardItem> random_items(std::mt19937& random) {
  std::vector<ShardItem> items(1 + random() % 12);
  for (auto& item : items) {
    item.numel = random() % 4 == 0 ? random() % 3 : random() % 5000;
    item.kind = random() % 5 == 0;
  }
  return items;
}

TEST(ShardPlan, ItemsOfALeafAreOneGroupBehindTheFirstThatHadAny) {
  const std::vector<std::vector<size_t>> groups = {{6, 5}, {4, 3}, {2}, {1, 0}};
  EXPECT_THAT(gather_leaves(groups, {-1, 0, 0, 0, 1, -1, -1}),
              ElementsAre(ElementsAre(6, 5), ElementsAre(4), ElementsAre(3, 2, 1), ElementsAre(0)));
  EXPECT_EQ(gather_leaves(groups, std::vector<int>(7, -1)), groups);
}

TEST(ShardPlan, EveryElementHasExactlyOneOwner) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto items = random_items(random);
    const int owners = 1 + static_cast<int>(random() % 7);
    const auto plan = plan_shards(items, group_by_size(items, 4000), owners);

    for (size_t item = 0; item < items.size(); ++item) {
      int64_t next = 0;
      for (int owner = 0; owner < owners; ++owner) {
        const auto mine = owned_interval(plan, items, item, owner);
        if (mine.size() == 0) continue;
        ASSERT_EQ(mine.begin, next) << "seed " << seed;
        next = mine.end;
      }
      ASSERT_EQ(next, items[item].numel) << "seed " << seed;
    }
  }
}

TEST(ShardPlan, SlicesBeginAtMultiplesOf64Elements) {
  std::mt19937 random(7);
  const auto items = random_items(random);
  const auto plan = plan_shards(items, group_by_size(items, 1 << 20), 3);

  for (size_t item = 0; item < items.size(); ++item) {
    for (int owner = 0; owner < 3; ++owner) {
      const auto mine = owned_interval(plan, items, item, owner);
      if (mine.size() > 0) {
        EXPECT_EQ(mine.begin % kShardAlign, 0);
      }
    }
  }
}

TEST(ShardPlan, UnitsAreCutBySizeFromTheLastItemOn) {
  const std::vector<ShardItem> items(4, ShardItem{.numel = 100});

  EXPECT_THAT(group_by_size(items, 800), ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(ShardPlan, ABiasIsInTheUnitOfItsWeight) {
  const std::vector<ShardItem> items = {{.numel = 1000}, {.numel = 10}, {.numel = 1000}, {.numel = 10}};

  EXPECT_THAT(group_by_size(items, 4000), ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(ShardPlan, ItemsOfTwoKindsAreNotInOneUnit) {
  const std::vector<ShardItem> items = {{.numel = 1, .kind = 0}, {.numel = 1, .kind = 1}};

  EXPECT_EQ(plan_shards(items, {{0, 1}}, 2).units.size(), 2u);
}

TEST(ShardPlan, AnItemWithoutAUnitIsNamed) {
  const std::vector<ShardItem> items = {{.name = "a"}, {.name = "b"}};

  EXPECT_THROW(plan_shards(items, {{0}}, 2), InternalError);
  EXPECT_THROW(plan_shards(items, {{0, 1}, {1}}, 2), InternalError);
}

TEST(ShardPlan, WholeItemsAreDealtEvenly) {
  const std::vector<ShardItem> items = {{.numel = 10}, {.numel = 50}, {.numel = 30}, {.numel = 20}};

  EXPECT_THAT(deal_whole(items, 2), ElementsAre(0, 0, 1, 1));
}

}  // namespace
}  // namespace hasten::parallel
