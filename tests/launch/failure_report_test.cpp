#include "hasten/launch/failure_report.h"

#include <gtest/gtest.h>

#include <csignal>

namespace hasten::launcher {
namespace {

std::vector<WorkerPlace> places(int num_workers) {
  std::vector<WorkerPlace> result;
  for (int rank = 0; rank < num_workers; ++rank) {
    result.push_back(
        {.rank = rank, .local_rank = rank, .world_size = num_workers, .local_world_size = num_workers});
  }
  return result;
}

int exit_status(int exit_code) {
  return exit_code << 8;
}

TEST(FailureReport, NamesTheRootCauseFirstThenTheOthersByTheirEnds) {
  const Outcome outcome{3,
                        WorkerEnd{1, 4711, exit_status(3)},
                        {{3, 4713, SIGTERM}, {0, 4710, SIGTERM}, {2, 4712, exit_status(1)}}};

  EXPECT_EQ(failure_report(outcome, places(4), "RuntimeError: boom\nat line 3"),
            "hasten: rank 1 of 4 failed first: exit code 3 (local rank 1, pid 4711)\n"
            "  message: RuntimeError: boom\n"
            "    at line 3\n"
            "  the others: exit code 1 (rank 2), killed by SIGTERM (ranks 3, 0)\n");
}

TEST(FailureReport, GivesAHintForEndsThatUsuallyHaveOneCause) {
  const Outcome outcome{139, WorkerEnd{0, 7, SIGSEGV}, {}};

  EXPECT_EQ(failure_report(outcome, places(1), std::nullopt),
            "hasten: rank 0 of 1 failed first: killed by SIGSEGV (local rank 0, pid 7)\n"
            "  hint: invalid memory access; a debugger or a core file (ulimit -c unlimited) shows where\n");
  EXPECT_NE(hint_for(SIGKILL).find("memory limit"), std::string::npos);
  EXPECT_NE(hint_for(exit_status(127)).find("not found"), std::string::npos);
  EXPECT_EQ(hint_for(exit_status(1)), "");
}

TEST(FailureReport, IsEmptyWithoutAFailure) {
  EXPECT_EQ(failure_report({130, {}, {}}, places(1), {}), "");
}

TEST(FailureReport, ASignalWithoutANameIsNumbered) {
  EXPECT_EQ(describe_end(40), "killed by signal 40");
}

}  // namespace
}  // namespace hasten::launcher
