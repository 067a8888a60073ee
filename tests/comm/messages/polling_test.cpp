// When polls pay: the pauses behind those that found nothing or were interrupted.
#include "comm/messages/polling.h"

#include <gtest/gtest.h>

#include <thread>

namespace hasten::comm {
namespace {

using std::chrono::milliseconds;
using Time = PollingRecord::Time;
const Time kStart{std::chrono::hours(1)};

TEST(PollingRecord, MissesDoubleThePauseUntilAMessageIsFound) {
  PollingRecord record;
  Time now = kStart;
  ASSERT_TRUE(record.may_poll(now));
  for (auto pause = PollingRecord::kPauseOfMiss; pause < PollingRecord::kLongestPause; pause *= 2) {
    record.missed(now);
    EXPECT_FALSE(record.may_poll(now + pause - milliseconds(1)));
    now += pause;
    EXPECT_TRUE(record.may_poll(now));
  }
  record.missed(now);
  EXPECT_FALSE(record.may_poll(now + PollingRecord::kLongestPause - milliseconds(1)));
  EXPECT_TRUE(record.may_poll(now + PollingRecord::kLongestPause)) << "no pause is longer";

  record.found();
  record.missed(now);

  EXPECT_TRUE(record.may_poll(now + PollingRecord::kPauseOfMiss));
}

TEST(PollingRecord, AFoundMessageDoesNotForgiveInterruptions) {
  PollingRecord record;
  Time now = kStart;
  for (auto pause = PollingRecord::kPauseOfInterruption; pause < PollingRecord::kLongestPause; pause *= 2) {
    record.found();
    record.interrupted(now);
    EXPECT_FALSE(record.may_poll(now + pause - milliseconds(1)));
    now += pause;
    EXPECT_TRUE(record.may_poll(now));
  }
  record.interrupted(now);
  EXPECT_FALSE(record.may_poll(now + PollingRecord::kLongestPause - milliseconds(1)));
}

TEST(PollingRecord, InterruptionsThatAreFarApartHaveTheShortPause) {
  PollingRecord record;
  Time now = kStart;
  for (int i = 0; i < 5; ++i) {
    record.interrupted(now);
    now += 10 * PollingRecord::kPauseOfInterruption;
  }
  record.interrupted(now);

  EXPECT_TRUE(record.may_poll(now + PollingRecord::kPauseOfInterruption));
}

TEST(Polling, GivesUpWhereNothingComes) {
  Polling polling;
  EXPECT_FALSE(polling.poll([] { return false; }));
}

TEST(Polling, AnInterruptedPollIsNotRepeatedAtOnce) {
  Polling polling;
  polling.poll([] {
    std::this_thread::sleep_for(milliseconds(2));
    return true;
  });
  int num_looks = 0;
  polling.poll([&] {
    ++num_looks;
    return true;
  });
  EXPECT_EQ(num_looks, 0);
}

}  // namespace
}  // namespace hasten::comm
