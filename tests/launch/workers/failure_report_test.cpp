#include "launch/workers/failure_report.h"

#include <gtest/gtest.h>

#include <csignal>

namespace hasten::launcher {
namespace {

std::vector<WorkerPlace> places(int num_workers) {
  std::vector<WorkerPlace> result;
  for (int rank = 0; rank < num_workers; ++rank) {
    result.push_back({.rank = rank, .local_rank = rank, .world_size = num_workers, .local_world_size = num_workers});
  }
  return result;
}

int exit_status(int exit_code) {
  return exit_code << 8;
}

TEST(FailureReport, IsOneBoxWithTheRootCauseFirstAndTheOthersByTheirEnds) {
  const Outcome outcome{
      3, WorkerEnd{1, 4711, exit_status(3)}, {{3, 4713, SIGTERM}, {0, 4710, SIGTERM}, {2, 4712, exit_status(1)}}};

  EXPECT_EQ(failure_report(outcome, places(4),
                           {.message = "RuntimeError: boom\nat line 3",
                            .hint = "look there",
                            .host = "node7",
                            .time = "12:00:01",
                            .error_tail = "one\ntwo\n",
                            .log_file = "/logs/1/stderr.log"}),
            "╭ hasten: rank 1 of 4 failed first: exit code 3\n"
            "│ local rank 1, host node7, pid 4711, 12:00:01\n"
            "│ message: RuntimeError: boom\n"
            "│   at line 3\n"
            "│ hint: look there\n"
            "│ log file: /logs/1/stderr.log\n"
            "│ its last lines on standard error:\n"
            "│   one\n"
            "│   two\n"
            "╰ exit code 3; the others: exit code 1 (rank 2), killed by SIGTERM (ranks 3, 0)\n");
}

TEST(FailureReport, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(failure_report({139, WorkerEnd{0, 7, SIGSEGV}, {}}, places(1), {}),
            "╭ hasten: rank 0 of 1 failed first: killed by SIGSEGV\n"
            "│ local rank 0, pid 7\n"
            "╰ exit code 139\n");
}

TEST(FailureReport, SaysHowOftenTheWorkersWereStartedAgain) {
  const Outcome outcome{.exit_code = 1, .root_cause = WorkerEnd{0, 7, exit_status(1)}, .attempt = 2};

  EXPECT_NE(failure_report(outcome, places(1), {}, {.max_restarts = 2}).find("│ restarts: 2 of 2 were made\n"),
            std::string::npos);
}

TEST(FailureReport, GivesAHintForEndsThatUsuallyHaveOneCause) {
  constexpr int kCoreWritten = 0x80;

  EXPECT_NE(hint_for(SIGSEGV).find("ulimit -c unlimited"), std::string::npos);
  EXPECT_NE(hint_for(SIGSEGV | kCoreWritten).find("core file that was written"), std::string::npos);
  EXPECT_NE(hint_for(SIGBUS).find("/dev/shm"), std::string::npos);
  EXPECT_NE(hint_for(exit_status(127)).find("not found"), std::string::npos);
  EXPECT_EQ(hint_for(exit_status(1)), "");
}

TEST(FailureReport, IsEmptyWithoutAFailure) {
  EXPECT_EQ(failure_report({130, {}, {}}, places(1), {}), "");
}

}  // namespace
}  // namespace hasten::launcher
