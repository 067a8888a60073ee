#include "hasten/core/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten {
namespace {

TEST(Version, IsThreeNumbers) {
  EXPECT_THAT(version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace hasten
