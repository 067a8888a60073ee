#include "launch/workers/replacement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace hasten::launcher {
namespace {

using ::testing::HasSubstr;

constexpr WorkerDeath left_with(int exit_code, int64_t step = 0) {
  return {exit_code << 8, step};
}
constexpr WorkerDeath killed_by(int signal, int64_t step = 0) {
  return {signal, step};
}

TEST(Replacement, IsForFailuresOfEachKind) {
  for (const WorkerDeath& death :
       {left_with(1), left_with(3), left_with(127), killed_by(SIGKILL), killed_by(SIGSEGV), killed_by(SIGTERM)})
    EXPECT_TRUE(decide_replacement(death, {.limit = 1}).is_due) << death.status;
}

TEST(Replacement, IsNotAskedForWithoutTheOption) {
  const Replacement none = decide_replacement(killed_by(SIGKILL), {.limit = 0});

  EXPECT_FALSE(none.is_due);
  EXPECT_EQ(none.reason, "");
}

TEST(Replacement, IsNoRemedyForWrongUsage) {
  const Replacement none = decide_replacement(left_with(2), {.limit = 5});

  EXPECT_FALSE(none.is_due);
  EXPECT_THAT(none.reason, HasSubstr("exit code 2"));
}

TEST(Replacement, EndsAtItsLimit) {
  EXPECT_TRUE(decide_replacement(killed_by(SIGKILL), {.num_replaced = 4, .limit = 5}).is_due);
  const Replacement none = decide_replacement(killed_by(SIGKILL), {.num_replaced = 5, .limit = 5});

  EXPECT_FALSE(none.is_due);
  EXPECT_THAT(none.reason, HasSubstr("the 5 of --survive"));
}

TEST(Replacement, ComesTooLateOnceAWorkerHasEnded) {
  const Replacement none = decide_replacement(killed_by(SIGKILL), {.limit = 5, .any_has_ended = true});

  EXPECT_FALSE(none.is_due);
  EXPECT_THAT(none.reason, HasSubstr("has ended already"));
}

TEST(Replacement, StopsAtTheThirdFailureAtOneStep) {
  const std::vector<WorkerDeath> two = {left_with(1, 7), killed_by(SIGSEGV, 7)};

  const Replacement third = decide_replacement(left_with(1, 7), {.earlier = two, .limit = 9});

  EXPECT_FALSE(third.is_due);
  EXPECT_THAT(third.reason, HasSubstr("3 times at step 7"));
  EXPECT_TRUE(decide_replacement(left_with(1, 8), {.earlier = two, .limit = 9}).is_due);
  EXPECT_TRUE(decide_replacement(left_with(1, 7), {.earlier = {left_with(1, 7), left_with(1, 6)}, .limit = 9}).is_due);
}

TEST(Replacement, SigkillComesFromOutsideHoweverOften) {
  const std::vector<WorkerDeath> many(8, killed_by(SIGKILL, 7));

  EXPECT_TRUE(decide_replacement(killed_by(SIGKILL, 7), {.earlier = many, .limit = 99}).is_due);
  EXPECT_TRUE(decide_replacement(left_with(1, 7), {.earlier = many, .limit = 99}).is_due);
}

}  // namespace
}  // namespace hasten::launcher
