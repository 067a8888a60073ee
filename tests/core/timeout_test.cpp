#include "hasten/core/timeout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten {
namespace {

using namespace std::chrono_literals;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Timeout, NoTimeIsRefusedWithItsUnitAndTheRemedy) {
  const TimeoutWords save{"save_timeout", "the time of a save", "30 minutes"};

  EXPECT_THAT([] { require_timeout({"comm", 1, 2}, 0ms); },
              ThrowsMessage<UsageError>(StrEq("[comm] rank 1/2: timeout is 0 ms; expected the time that ranks wait for "
                                              "each other, more than 0. Leave it out for 30 minutes.")));
  EXPECT_THAT([&] { require_timeout({"checkpoint"}, -2s, save); },
              ThrowsMessage<UsageError>(StrEq("[checkpoint] save_timeout is -2 s; expected the time of a save, more "
                                              "than 0. Leave it out for 30 minutes.")));
  EXPECT_NO_THROW(require_timeout({"comm"}, 1ms));
}

}  // namespace
}  // namespace hasten
