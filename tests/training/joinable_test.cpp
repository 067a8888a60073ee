#include "hasten/training/joinable.h"

#include <gtest/gtest.h>

namespace hasten::training {
namespace {

TEST(Joinable, ACallIsShownWithItsComponentAndNumbers) {
  EXPECT_EQ(describe(JoinCall{"models", "backward", {1, 0}}), "models.backward [1, 0]");
  EXPECT_EQ(describe(JoinCall{"operations", "barrier"}), "operations.barrier");
  EXPECT_EQ(describe(JoinCall{}), "nothing");
}

TEST(Joinable, ActiveRanksKnowWhetherAllHaveData) {
  const ActiveRanks some{.ranks = {1, 2}};

  EXPECT_EQ(some.first(), 1);
  EXPECT_FALSE(some.all_of(3));
  EXPECT_TRUE(some.all_of(2));
}

TEST(Joinable, AComponentWithoutAStateFinishesAndMergesNothing) {
  struct Barrier : Joinable {
    std::string name() const override { return "barrier"; }
    void shadow(const JoinCall&, const ActiveRanks&) override {}
  } barrier;

  EXPECT_NO_THROW(barrier.finish(0));
  EXPECT_FALSE(barrier.merge(JoinCall{"barrier", "a"}, JoinCall{"barrier", "b"}));
}

}  // namespace
}  // namespace hasten::training
