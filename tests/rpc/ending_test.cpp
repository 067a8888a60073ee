// Termination detection: no end while a message is under way.
#include "rpc/ending.h"

#include <gtest/gtest.h>

#include "rpc/engine/unreached_receives.h"

namespace hasten::rpc {
namespace {

EndingReport counts(std::vector<uint64_t> sent, std::vector<uint64_t> received) {
  return {std::move(sent), std::move(received)};
}

TEST(Ending, EndsAfterTwoEqualRoundsInWhichAllThatWasSentHasCome) {
  Ending ending(2);
  for (int round = 1; round <= 2; ++round) {
    ending.report(0, round, counts({0, 3}, {0, 1}));
    EXPECT_FALSE(ending.advance()) << "one report is missing";
    ending.report(1, round, counts({1, 0}, {3, 0}));
    EXPECT_TRUE(ending.advance());
  }

  EXPECT_TRUE(ending.done());
}

TEST(Ending, DoesNotEndWhileAMessageIsUnderWayOrCountsChange) {
  Ending ending(2);
  for (uint64_t round = 1; round <= 5; ++round) {
    ending.report(0, static_cast<int>(round), counts({0, round + 1}, {0, 0}));
    ending.report(1, static_cast<int>(round), counts({0, 0}, {round, 0}));
    ending.advance();
    EXPECT_FALSE(ending.done()) << "round " << round;
  }
}

TEST(Ending, GoesOnWithoutALostWorker) {
  Ending ending(3);
  ending.report(0, 1, counts({0, 0, 5}, {0, 0, 0}));
  ending.report(1, 1, counts({0, 0, 0}, {0, 0, 0}));
  EXPECT_FALSE(ending.advance());

  ending.lose(2);

  EXPECT_TRUE(ending.advance());
  ending.report(0, 2, counts({0, 0, 5}, {0, 0, 0}));
  ending.report(1, 2, counts({0, 0, 0}, {0, 0, 0}));
  EXPECT_TRUE(ending.advance());
  EXPECT_TRUE(ending.done());
  EXPECT_EQ(ending.lost(), std::set<int>{2});
}

TEST(Ending, TwoThatHaveLostEachOtherDoNotKeepTheRest) {
  Ending ending(3);
  for (int round = 1; round <= 2; ++round) {
    ending.report(0, round, counts({0, 0, 0}, {0, 0, 0}));
    ending.report(1, round, counts({0, 0, kLostCount}, {0, 0, kLostCount}));
    ending.report(2, round, counts({0, 7, 0}, {0, 3, 0}));
    EXPECT_TRUE(ending.advance());
  }

  EXPECT_TRUE(ending.done());
  EXPECT_TRUE(ending.lost().empty());
}

struct GraphNode {
  std::vector<GraphNode*> next;
};

TEST(Settle, FindsTheReceiveFunctionsThatNoGradientReaches) {
  GraphNode used, unused, middle{{&used}}, root{{&middle, &root}};
  const std::map<GraphNode*, int64_t> awaited = {{&used, 1}, {&unused, 2}};

  const auto missing = unreached<GraphNode>({&root, nullptr}, awaited, [](GraphNode* node) { return node->next; });

  EXPECT_EQ(missing, std::vector<int64_t>{2});
}

}  // namespace
}  // namespace hasten::rpc
