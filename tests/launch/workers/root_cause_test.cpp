#include "launch/workers/root_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>

#include "launch/workers/failure_report.h"

namespace hasten::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<WorkerPlace> places_from(int num_workers, int first = 0) {
  std::vector<WorkerPlace> result;
  for (int local = 0; local < num_workers; ++local)
    result.push_back({.rank = first + local, .local_rank = local, .world_size = 8, .local_world_size = num_workers});
  return result;
}

int ended_with(int exit_code) {
  return exit_code << 8;
}

TimePoint at(int ms) {
  return TimePoint() + std::chrono::milliseconds(ms);
}

const std::string kConsequence = "[comm] rank 0/2: rank 1 failed: [data] rank 1/2: the batch is broken";

TEST(RootCause, AMessageThatNamesAnotherRankIsAConsequence) {
  EXPECT_EQ(rank_that_failed(kConsequence), 1);
  EXPECT_EQ(rank_that_failed("[comm] rank 0/64: rank 63 failed: boom"), 63);
  EXPECT_FALSE(rank_that_failed("[data] rank 1/2: the batch is broken"));
  EXPECT_FALSE(rank_that_failed("the rank failed: no number"));
}

TEST(RootCause, TheRankThatIsNamedTakesThePlaceOfTheOneThatEndedFirst) {
  const Outcome observed{1, WorkerEnd{0, 10, ended_with(1)}, {{1, 11, ended_with(2)}, {2, 12, SIGTERM}}};
  const std::map<int, std::string> messages{{0, kConsequence}, {1, "[data] rank 1/2: the batch is broken"}};

  const Outcome outcome = with_cause(observed, places_from(3), [&](int rank) {
    return messages.count(rank) ? std::optional(messages.at(rank)) : std::nullopt;
  });

  EXPECT_EQ(outcome.root_cause->local_rank, 1);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.others.front().local_rank, 0);
}

// The launcher's SIGTERM came while the rank said its last words.
TEST(RootCause, ASignalThatEndedTheCauseMeanwhileIsNotTheExitCode) {
  const Outcome observed{1, WorkerEnd{0, 10, ended_with(1)}, {{1, 11, SIGTERM}}};

  const Outcome outcome = with_cause(observed, places_from(2),
                                     [&](int rank) { return rank == 0 ? std::optional(kConsequence) : std::nullopt; });

  EXPECT_EQ(outcome.root_cause->local_rank, 1);
  EXPECT_EQ(outcome.exit_code, 1);
  const std::string report = failure_report(outcome, places_from(2), {.message = "[data] rank 1/2: the row is torn"});
  EXPECT_THAT(report,
              HasSubstr("rank 1 of 8 failed first: an uncaught exception (it was still ending when the launcher "
                        "sent SIGTERM)"));
  EXPECT_THAT(report, HasSubstr("message: [data] rank 1/2: the row is torn"));
}

TEST(RootCause, ARankOfAnotherMachineIsNamedInTheReport) {
  const Outcome observed{1, WorkerEnd{0, 10, ended_with(1)}, {{1, 11, SIGTERM}}};
  const auto message = [&](int) { return std::optional<std::string>(kConsequence); };

  const Outcome outcome = with_cause(observed, places_from(2, 4), message);
  const std::string report = failure_report(outcome, places_from(2, 4), {.message = kConsequence});

  EXPECT_EQ(outcome.root_cause->local_rank, 0);
  EXPECT_THAT(report, HasSubstr("this follows from the failure of rank 1, which is on another machine"));
}

TEST(RootCause, TwoRanksThatNameEachOtherEndTheSearch) {
  const Outcome observed{1, WorkerEnd{0, 10, ended_with(1)}, {{1, 11, ended_with(1)}}};
  const auto message = [](int rank) { return std::optional("rank " + std::to_string(1 - rank) + " failed: x"); };

  EXPECT_TRUE(with_cause(observed, places_from(2), message).root_cause.has_value());
}

TEST(RootCause, ARankThatLeftBeforeIsNamedWithTheRemedy) {
  const Outcome outcome{1,
                        WorkerEnd{0, 10, ended_with(1), at(500)},
                        {{1, 11, ended_with(0), at(100)}, {2, 12, ended_with(0), at(900)}, {3, 13, SIGTERM, at(50)}}};
  const auto early = workers_that_left(outcome);
  ASSERT_EQ(early.size(), 1u);
  EXPECT_EQ(early[0].local_rank, 1);

  const std::string waited = failure_report(
      outcome, places_from(4), {.message = "[comm] rank 0/4: all_reduce: closed", .left_early = {{1, 5}, {2}}});
  const std::string other =
      failure_report(outcome, places_from(4), {.message = "[data] rank 0/4: bad", .left_early = {{1}}});

  EXPECT_THAT(waited, HasSubstr("cause: rank 1 after step 5, rank 2 ended with exit code 0 while the others went on"));
  EXPECT_THAT(waited, HasSubstr("join_uneven_inputs"));
  EXPECT_THAT(other, Not(HasSubstr("cause:")));
}

std::string message_of_the_second(int local_rank) {
  return local_rank == 1 ? "[comm] rank 1/8: all_reduce was not completed: rank 0 has left the group" : "boom";
}

TEST(RootCause, TheRankThatLeftBeforeIsTheCauseOfThoseThatWaitedForIt) {
  const Outcome observed{
      1,
      WorkerEnd{1, 11, ended_with(1), at(500)},
      {{2, 12, ended_with(3), at(510), at(505)}, {3, 13, SIGTERM, at(520)}, {0, 10, ended_with(7), at(600), at(400)}}};

  const Outcome outcome =
      with_cause(observed, places_from(4), [](int rank) { return std::optional(message_of_the_second(rank)); });

  EXPECT_EQ(outcome.root_cause->local_rank, 0);
  EXPECT_EQ(outcome.exit_code, 7);
}

// Rank 1 catches its error, and ends with a code of its own.
TEST(RootCause, OfRanksThatLeaveWithoutAMessageTheFirstIsTheCause) {
  const WorkerEnd early{0, 10, ended_with(7), at(600), at(400)}, late{1, 11, ended_with(3), at(500), at(450)};
  const auto none = [](int) { return std::optional<std::string>(); };

  EXPECT_EQ(with_cause({3, late, {early}}, places_from(2), none).exit_code, 7);
  EXPECT_EQ(with_cause({7, early, {late}}, places_from(2), none).exit_code, 7);
}

TEST(RootCause, AFailureOfItsOwnStaysTheCauseBesideARankThatLeft) {
  const Outcome observed{1, WorkerEnd{1, 11, ended_with(1), at(500)}, {{0, 10, ended_with(7), at(600), at(400)}}};
  const Outcome crashed{139, WorkerEnd{1, 11, SIGSEGV, at(500)}, {{0, 10, ended_with(7), at(600), at(400)}}};

  const auto own = [](int) { return std::optional<std::string>("[data] rank 1/8: the row is torn"); };
  const auto none = [](int) { return std::optional<std::string>(); };

  EXPECT_EQ(with_cause(observed, places_from(2), own).root_cause->local_rank, 1);
  EXPECT_EQ(with_cause(crashed, places_from(2), none).exit_code, 139);
}

TEST(RootCause, ARankThatLeftAndEndedLaterWithZeroIsNamed) {
  const Outcome outcome{1, WorkerEnd{1, 11, ended_with(1), at(500)}, {{0, 10, ended_with(0), at(900), at(400)}}};

  ASSERT_EQ(workers_that_left(outcome).size(), 1u);
  EXPECT_EQ(workers_that_left(outcome)[0].local_rank, 0);
}

TEST(RootCause, LastLinesLeaveOutWhatTheMessageSays) {
  const Outcome outcome{1, WorkerEnd{1, 11, ended_with(1)}, {}};

  const std::string report = failure_report(
      outcome, places_from(2),
      {.message = "boom\nsecond line", .error_tail = "a warning\nhasten: rank 1/2: boom\nsecond line\n"});
  const std::string alone =
      failure_report(outcome, places_from(2), {.message = "boom", .error_tail = "hasten: boom\n"});

  EXPECT_EQ(report.find("boom"), report.rfind("boom"));
  EXPECT_THAT(report, HasSubstr("its last lines on standard error:\n│   a warning\n╰"));
  EXPECT_THAT(alone, Not(HasSubstr("last lines")));
}

}  // namespace
}  // namespace hasten::launcher
