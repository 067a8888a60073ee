// The judge of golden cases itself (support/golden.h): a case must compare something to be right.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/golden.h"

namespace hasten::testing {
namespace {

using nlohmann::json;

GoldenCase case_with(json expected, json fixed = nullptr) {
  return {.name = "made/up",
          .family = "made",
          .input = json::object(),
          .expected = std::move(expected),
          .fixed = std::move(fixed),
          .quirks = {}};
}

TEST(GoldenTopic, ACaseThatComparesNothingIsRed) {
  GoldenTopic topic("device_map");
  const json given = {{"value", 1}};

  topic.judge(case_with({{"value", 1}}), given);

  EXPECT_NONFATAL_FAILURE(topic.judge(case_with(json::object()), given), "made/up");
  EXPECT_NONFATAL_FAILURE(topic.judge(case_with(json()), given), "made/up");
  EXPECT_NONFATAL_FAILURE(topic.judge(case_with({{"value", 2}}, json::object()), given), "made/up");
  EXPECT_NONFATAL_FAILURE(topic.judge(case_with({{"value", 2}}), given), "made/up");
}

}  // namespace
}  // namespace hasten::testing
