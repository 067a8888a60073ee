#include "hasten/core/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "hasten/core/error.h"

namespace hasten {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Environment, AnEmptyValueCountsAsUnset) {
  const auto environment = Environment::of({{"A", ""}});

  EXPECT_FALSE(environment.has("A"));
  EXPECT_EQ(environment.integer("A"), std::nullopt);
}

TEST(Environment, ReadsTypedValues) {
  const auto environment = Environment::of({{"I", "-3"}, {"R", "0.25"}, {"F", "Yes"}, {"C", "Debug"}});

  EXPECT_EQ(environment.integer("I"), -3);
  EXPECT_EQ(environment.real("R"), 0.25);
  EXPECT_EQ(environment.flag("F"), true);
  EXPECT_EQ(environment.choice("C", {"info", "debug"}), "debug");
}

TEST(Environment, ErrorsNameVariableValueAndExpectation) {
  const auto environment =
      Environment::of({{"RANK", "two"}, {"WORLD_SIZE", "0"}, {"CHECK", "maybe"}, {"LEVEL", "inof"}});

  EXPECT_EQ(message_of([&] { environment.integer("RANK"); }),
            "[env] RANK='two' is not an integer. Correct it or unset it.");
  EXPECT_EQ(message_of([&] { environment.integer("WORLD_SIZE", 1); }),
            "[env] WORLD_SIZE='0' is not at least 1. Correct it or unset it.");
  EXPECT_THAT(message_of([&] { environment.flag("CHECK"); }), testing::HasSubstr("CHECK='maybe' is not a flag"));
  EXPECT_THAT(message_of([&] {
                environment.choice("LEVEL", {"info", "debug"});
              }),
              testing::HasSubstr("did you mean 'info'?"));
}

TEST(Environment, CurrentSeesThisProcess) {
  EXPECT_TRUE(Environment::current().has("PATH"));
}

TEST(Environment, AppliedVariablesAreThisProcesssOwnAndOthersStay) {
  Environment::of({{"HASTEN_TEST_KEPT", "1"}, {"HASTEN_TEST_CHANGED", "old"}}).apply();

  Environment::of({{"HASTEN_TEST_CHANGED", "new"}}).apply();

  EXPECT_EQ(Environment::current().text("HASTEN_TEST_KEPT"), "1");
  EXPECT_EQ(Environment::current().text("HASTEN_TEST_CHANGED"), "new");
}

}  // namespace
}  // namespace hasten
