// More hangs of a run, and long waits that are none: what its ranks say by themselves, and when they keep silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "hasten/core/env.h"
#include "hasten/core/text.h"
#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"
#include "support/folder.h"
#include "support/processes.h"

namespace hasten::testing {
namespace {

using process::Process;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Gloo does not compare large calls.
constexpr int64_t kLarge = 300'000;

std::string setting_of(const char* name) {
  return Environment::current().text(name).value_or("");
}

std::string report_of_gloo(const std::string& case_name, const std::string& dtype = "float") {
  Processes processes(3, case_name, {{"HASTEN_HANG_AFTER", "1.5"}, {"HASTEN_TEST_DTYPE", dtype}});
  processes.wait_for_output(0, "╰");
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGKILL);
  return processes.wait()[0].output;
}

HASTEN_PROCESS_CASE(hang_swapped) {
  const Process process({.backend = comm::BackendKind::kGloo});
  const at::Tensor values = torch::ones({kLarge});
  if (process.rank() == 2) process.group().broadcast_(values, 0);
  process.group().all_reduce_(values);
  if (process.rank() != 2) process.group().broadcast_(values, 0);
  return 0;
}

TEST(RunWatchMore, TwoLargeCallsThatAreSwappedAreBothNamed) {
  const std::string report = report_of_gloo("hang_swapped");

  EXPECT_THAT(report, HasSubstr("the ranks make different calls; rank 2 of 3 differs"));
  EXPECT_THAT(report, HasSubstr("as number 1 "));
  EXPECT_THAT(report, HasSubstr("ranks 0 1 call all_reduce(sum) of float32 [300000] at run_watch_more_slow_test.cpp:"));
  EXPECT_THAT(report, HasSubstr("rank 2 calls broadcast of float32 [300000], root 0 at run_watch_more_slow_test.cpp:"));
}

HASTEN_PROCESS_CASE(hang_shapes) {
  const Process process({.backend = comm::BackendKind::kGloo});
  const bool is_other = process.rank() == 2;
  const auto dtype = is_other && setting_of("HASTEN_TEST_DTYPE") == "double" ? torch::kDouble : torch::kFloat;
  const int64_t size = is_other && dtype == torch::kFloat ? kLarge + 1000 : kLarge;
  process.group().all_reduce_(torch::ones({size}, dtype));
  while (true) pause();
}

// Gloo finds it out on one rank, and throws on a thread of its own there.
TEST(RunWatchMore, AnotherShapeOrDtypeOfALargeTensorNamesBothCalls) {
  const std::string other_size = report_of_gloo("hang_shapes"), other_dtype = report_of_gloo("hang_shapes", "double");

  for (const std::string& report : {other_size, other_dtype}) {
    EXPECT_THAT(report, HasSubstr("the ranks make different calls; rank 2 of 3 differs"));
    EXPECT_THAT(report, HasSubstr("as number 1 ranks 0 1 call all_reduce(sum) of float32 [300000] at "
                                  "run_watch_more_slow_test.cpp:"));
  }
  EXPECT_THAT(other_size, HasSubstr("rank 2 calls all_reduce(sum) of float32 [301000] at "));
  EXPECT_THAT(other_dtype, HasSubstr("rank 2 calls all_reduce(sum) of float64 [300000] at "));
}

HASTEN_PROCESS_CASE(hang_returns) {
  const Process process;
  const at::Tensor values = torch::ones({kLarge});
  process.group().all_reduce_(values);
  if (process.rank() != 2) process.group().all_reduce_(values);
  return 0;
}

// Its connections end with it, so no rank hangs.
TEST(RunWatchMore, ARankThatReturnsEarlyIsNamedToTheOthersAsOneThatHasEndedWell) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  for (const char* backend : {"shm", "gloo"}) {
    const auto ended = test::run_command({HASTEN_COMMAND, "launch", "-n", "3", "--cpu", "--no_python", program},
                                         {{"HASTEN_TEST_CASE", "hang_returns"}, {"HASTEN_BACKEND", backend}});

    EXPECT_EQ(ended.exit_code, 1) << backend;
    // Its process may still be about to end.
    EXPECT_THAT(ended.err, ContainsRegex("because rank 2 has (ended in order|left the run: its Process has ended, the "
                                         "program goes on)\\. Did its loop end before the others' "
                                         "\\(join_uneven_inputs\\)\\?"))
        << backend;
    EXPECT_THAT(ended.err, Not(HasSubstr("peer closed its connection without a word"))) << backend;
  }
}

HASTEN_PROCESS_CASE(hang_uneven) {
  const Process process({.backend = comm::BackendKind::kGloo});
  const at::Tensor values = torch::ones({kLarge});
  for (int batch = 0; batch < (process.rank() == 2 ? 2 : 3); ++batch) process.group().all_reduce_(values);
  process.group().all_gather(values);
  return 0;
}

TEST(RunWatchMore, ARankWithABatchLessIsNamedWithItsCallBehindTheLoop) {
  const std::string report = report_of_gloo("hang_uneven");

  EXPECT_THAT(report, HasSubstr("the ranks make different calls; rank 2 of 3 differs"));
  EXPECT_THAT(report, HasSubstr("as number 3 "));
  EXPECT_THAT(report, HasSubstr("rank 2 calls all_gather of float32 [300000]"));
}

HASTEN_PROCESS_CASE(hang_swallowed) {
  const Process process({.backend = comm::BackendKind::kGloo});
  const at::Tensor values = torch::ones({kLarge});
  for (int step = 0; step < 4; ++step) {
    if (process.rank() != 2 || step != 2) process.group().all_reduce_(values);  // catch (...) {}
    flight::process_recorder()->step(1);
  }
  while (true) pause();
}

TEST(RunWatchMore, AStepThatSwallowedItsExceptionPutsTheRankAStepAhead) {
  const std::string report = report_of_gloo("hang_swallowed");

  EXPECT_THAT(report, HasSubstr("rank 2 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 4 of 'world'"));
  EXPECT_THAT(report, HasSubstr("rank 2 is in step 5 of epoch 0, rank 0 in step 4 of epoch 0"));
}

std::chrono::steady_clock::time_point in_four_seconds() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(4);
}

void expect_silence(const std::vector<ProcessResult>& results) {
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, Not(HasSubstr("hasten:")));
  }
}

HASTEN_PROCESS_CASE(no_hang_save) {
  const Process process;
  if (process.rank() == 0) {
    const flight::PhaseScope scope("checkpoint");
    std::ofstream file(*Environment::current().text("HASTEN_TEST_FILE"));
    const std::string part(200'000, 'x');
    for (const auto end = in_four_seconds(); std::chrono::steady_clock::now() < end; usleep(20'000)) {
      file.seekp(0) << part << std::flush;
    }
  }
  process.group().barrier();
  return 0;
}

using RunWatchSaves = InFolder;

TEST_F(RunWatchSaves, ARankThatWritesALargeFileIsNotReported) {
  expect_silence(run_processes(3, "no_hang_save", {{"HASTEN_HANG_AFTER", "1.5"}, {"HASTEN_TEST_FILE", path("save")}}));
}

HASTEN_PROCESS_CASE(no_hang_evaluation) {
  const Process process;
  if (process.rank() == 0) {
    const flight::PhaseScope scope("evaluate");
    volatile double sum = 0;
    for (const auto end = in_four_seconds(); std::chrono::steady_clock::now() < end;) sum = sum + 1;
  }
  process.group().barrier();
  return 0;
}

// A line may be said, for the rank may hang as well.
TEST(RunWatchMore, ARankThatEvaluatesAloneGetsNoBox) {
  for (const ProcessResult& result : run_processes(3, "no_hang_evaluation", {{"HASTEN_HANG_AFTER", "1.5"}})) {
    EXPECT_EQ(result.exit_code, 0);
    if (result.output.find("of a core") != std::string::npos)
      continue;  // the machine is too busy to tell it from a hang
    EXPECT_THAT(result.output, Not(HasSubstr("╭")));
  }
}

HASTEN_PROCESS_CASE(no_hang_suspended) {
  const Process process;
  process.group().barrier();
  if (process.rank() == 1) {
    // Short sleeps, for one that is under way when the run is stopped has ended when it goes on.
    for (int i = 0; i < 300; ++i) {
      usleep(5'000);
      if (i == 50) (void)!::write(STDOUT_FILENO, "ready\n", 6);  // the others wait in the second barrier
    }
  }
  process.group().barrier();
  return 0;
}

// As a machine that sleeps does. The others wait for rank 1 all the time.
TEST(RunWatchMore, ARunThatIsSuspendedAndGoesOnIsNotReported) {
  Processes processes(3, "no_hang_suspended", {{"HASTEN_HANG_AFTER", "3"}});
  ASSERT_TRUE(processes.wait_for_output(1, "ready"));

  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGSTOP);
  sleep(5);
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGCONT);

  expect_silence(processes.wait());
}

}  // namespace
}  // namespace hasten::testing
