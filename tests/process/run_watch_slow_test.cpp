// Hangs of a run, each with what its ranks say about it by themselves. Over shared memory, and those that depend on the
// transport, over Gloo as well.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "hasten/core/text.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"
#include "support/folder.h"
#include "support/processes.h"

using hasten::process::Process;

// Outside of hasten's namespace, as a program's own functions.
__attribute__((noinline)) void count_losses(std::mutex& mutex) {
  mutex.lock();
  asm volatile("");
}

__attribute__((noinline)) void compute_losses() {
  volatile double sum = 0;
  while (true) sum = sum + 1;
}

namespace hasten::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

at::Tensor ones(int64_t count) {
  return torch::ones({count});
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Process watched_process() {
  const bool is_gloo = variable("HASTEN_TEST_BACKEND") == "gloo";
  return Process({.backend = is_gloo ? comm::BackendKind::kGloo : comm::BackendKind::kAuto});
}

/// What is said within a minute; the ranks are killed then.
std::string report_of(const std::string& case_name, const std::string& words, int rank = 0, int world_size = 3,
                      const std::map<std::string, std::string>& environment = {}) {
  auto variables = environment;
  variables.emplace("HASTEN_HANG_AFTER", "1.5");
  Processes processes(world_size, case_name, variables);
  processes.wait_for_output(rank, words);
  for (int other = 0; other < world_size; ++other) processes.signal(other, SIGKILL);
  return processes.wait()[static_cast<size_t>(rank)].output;
}

/// Hangs over the backend GetParam().
class RunWatchOver : public ::testing::TestWithParam<const char*> {
 protected:
  std::string report_of(const std::string& case_name, const std::string& words, const std::string& hang_after = "1.5") {
    return testing::report_of(case_name, words, 0, 3,
                              {{"HASTEN_TEST_BACKEND", GetParam()}, {"HASTEN_HANG_AFTER", hang_after}});
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, RunWatchOver, ::testing::Values("shared", "gloo"),
                         [](const auto& backend) { return std::string(backend.param); });

HASTEN_PROCESS_CASE(hang_barrier_too_many) {
  const Process process = watched_process();
  process.group().all_reduce_(ones(3));
  if (process.rank() == 2) process.group().barrier();  // if (main) save()
  process.group().barrier();
  process.group().barrier();
  while (true) pause();
}

TEST_P(RunWatchOver, ABarrierTooManyNamesThePlaceWhereTheCallsPart) {
  const std::string report = report_of("hang_barrier_too_many", "╰");

  EXPECT_THAT(report, HasSubstr("barrier 4 of 'world'"));
  EXPECT_THAT(report, HasSubstr("the calls part at number 2: rank 0 at run_watch_slow_test.cpp:"));
}

HASTEN_PROCESS_CASE(hang_opposite_groups) {
  const Process process = watched_process();
  const auto one = process.group().subgroup({0, 1}), other = process.group().subgroup({0, 1});
  if (process.rank() == 0) one->all_reduce_(ones(4)), other->all_reduce_(ones(4));
  if (process.rank() == 1) other->all_reduce_(ones(4)), one->all_reduce_(ones(4));
  process.group().barrier();
  return 0;
}

TEST_P(RunWatchOver, TwoGroupsInOppositeOrderAreACircle) {
  const std::string report = report_of("hang_opposite_groups", "╰", "3600");

  EXPECT_THAT(report, HasSubstr("ranks 0 1 of 3 wait for each other"));
  EXPECT_THAT(report, HasSubstr("rank 0 waits for rank 1 in all_reduce 1 of 'world/0[0,1]': sum of float32 [4]"));
  EXPECT_THAT(report, HasSubstr("rank 1 waits for rank 0 in all_reduce 1 of 'world/1[0,1]'"));
}

HASTEN_PROCESS_CASE(hang_receives) {
  const Process process = watched_process();
  const int next = (process.rank() + 1) % process.world_size();
  process.group().receive_(ones(2), next, 7);
  process.group().send(ones(2), next, 7);
  return 0;
}

TEST_P(RunWatchOver, ARingOfReceivesIsACircleWithTags) {
  const std::string report = report_of("hang_receives", "╰", "3600");

  EXPECT_THAT(report, HasSubstr("ranks 0-2 of 3 wait for each other"));
  EXPECT_THAT(report, HasSubstr("rank 2 waits for rank 0 in receive 1 from 0 (tag 7)"));
}

HASTEN_PROCESS_CASE(hang_mutex) {
  const Process process = watched_process();
  std::mutex mutex;
  if (process.rank() == 1) count_losses(mutex), count_losses(mutex);
  process.group().all_reduce_(ones(5));
  return 0;
}

TEST_P(RunWatchOver, AMutexLockedTwiceIsNamedWithItsFunction) {
  const std::string report = report_of("hang_mutex", "╰");

  EXPECT_THAT(report, HasSubstr("rank 1 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 1 of 'world': sum of float32 [5] at run_watch_slow_test.cpp:"));
  EXPECT_THAT(report, HasSubstr("count_losses ("));
  EXPECT_THAT(report, HasSubstr("rank 1 sleeps in a lock."));
}

HASTEN_PROCESS_CASE(hang_computes) {
  const Process process = watched_process();
  if (process.rank() == 1) {
    const flight::PhaseScope scope("evaluate");
    compute_losses();
  }
  process.group().barrier();
  return 0;
}

TEST_P(RunWatchOver, ARankThatComputesIsALineFirstWithItsPlace) {
  const std::string report = report_of("hang_computes", "compute_losses");

  if (report.find("of a core") != std::string::npos) return;  // the machine is too busy to tell it from a hang
  EXPECT_THAT(report, HasSubstr("hasten: ranks 0 2 wait for rank 1 in barrier 1 of 'world' for "));
  EXPECT_THAT(report, HasSubstr("it computes in evaluate: "));
  EXPECT_EQ(report.find("╭"), std::string::npos) << "it may be right to compute";
}

HASTEN_PROCESS_CASE(hang_skipped) {
  const Process process = watched_process();
  for (int step = 0; step < 3; ++step) {
    if (process.rank() == 2 && step == 1) continue;
    process.group().all_reduce_(ones(3));
  }
  while (process.rank() == 2) pause();
  return 0;
}

TEST_P(RunWatchOver, ASkippedCallLeavesTheRankBehindByOne) {
  const std::string report = report_of("hang_skipped", "╰");

  EXPECT_THAT(report, HasSubstr("rank 2 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 3 of 'world': sum of float32 [3] at run_watch_slow_test.cpp:"));
  EXPECT_THAT(report, HasSubstr("its last was all_reduce 2"));
}

HASTEN_PROCESS_CASE(hang_stopped) {
  const Process process = watched_process();
  process.group().all_reduce_(ones(300'000));
  if (process.rank() == 1) raise(SIGSTOP);
  process.group().all_reduce_(ones(300'000));
  return 0;
}

TEST_P(RunWatchOver, ARankThatIsStoppedIsCertain) {
  const std::string report = report_of("hang_stopped", "╰", "3600");

  EXPECT_THAT(report, HasSubstr("rank 1 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 2 of 'world': sum of float32 [300000]"));
  EXPECT_THAT(report, HasSubstr("rank 1 is stopped; kill -CONT "));
}

// Standard output and error are one pipe, which nobody reads.
HASTEN_PROCESS_CASE(hang_full_pipe) {
  const Process process = watched_process();
  if (process.rank() == 0) {
    int ends[2];
    if (pipe(ends) != 0) return 3;
    dup2(ends[1], STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
    const std::string line(4096, 'x');
    while (true) (void)!::write(STDOUT_FILENO, line.data(), line.size());
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatch, ARankInAFullPipeIsSaidByAnother) {
  const std::string report = report_of("hang_full_pipe", "╰", 1);

  EXPECT_THAT(report, HasSubstr("rank 0 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("rank 0 writes "));
}

HASTEN_PROCESS_CASE(wrong_limit) {
  const Process process;
  return 0;
}

TEST(RunWatch, AWrongTimeEndsEveryRankBeforeTheyMeet) {
  for (const ProcessResult& result : run_processes(3, "wrong_limit", {{"HASTEN_HANG_AFTER", "-1"}})) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.output, HasSubstr("HASTEN_HANG_AFTER=-1 is no time"));
  }
}

HASTEN_PROCESS_CASE(hang_evaluation) {
  const Process process;
  if (process.rank() == 1) {
    const flight::PhaseScope scope("evaluate");
    for (int i = 0; i < 400; ++i) usleep(10000), flight::alive();
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatch, ARankThatSaysThatItIsAliveIsNotReported) {
  for (const ProcessResult& result : run_processes(3, "hang_evaluation", {{"HASTEN_HANG_AFTER", "1.5"}})) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.output.find("hasten"), std::string::npos) << result.output;
  }
}

HASTEN_PROCESS_CASE(hang_read) {
  const Process process = watched_process();
  if (process.rank() == 1) {
    const flight::PhaseScope scope("data");
    char byte;
    (void)!::read(open(variable("HASTEN_TEST_FIFO").c_str(), O_RDWR), &byte, 1);
  }
  process.group().barrier();
  return 0;
}

using RunWatchFiles = InFolder;

TEST_F(RunWatchFiles, AReadThatDoesNotReturnNamesItsPath) {
  const std::string fifo = path("samples.fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);

  const std::string report = report_of("hang_read", "╰", 0, 3, {{"HASTEN_TEST_FIFO", fifo}});

  EXPECT_THAT(report, HasSubstr("rank 1 reads " + fifo + "."));
  EXPECT_THAT(report, HasSubstr("data; its last was the meeting"));
}

HASTEN_PROCESS_CASE(hang_worker) {
  const Process process = watched_process();
  if (process.rank() == 1) {
    const flight::PhaseScope scope("data");
    std::thread worker([] {
      char byte;
      (void)!::read(open(variable("HASTEN_TEST_FIFO").c_str(), O_RDWR), &byte, 1);
    });
    worker.join();
  }
  process.group().barrier();
  return 0;
}

TEST_F(RunWatchFiles, ADatasetThatBlocksInAWorkerNamesItsPath) {
  const std::string fifo = path("samples.fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);

  const std::string report = report_of("hang_worker", "╰", 0, 3, {{"HASTEN_TEST_FIFO", fifo}});

  EXPECT_THAT(report, HasSubstr("rank 1 waits for data; a worker thread reads " + fifo + "."));
}

HASTEN_PROCESS_CASE(hang_child) {
  const Process process = watched_process();
  if (process.rank() == 1) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    waitpid(child, nullptr, 0);
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatch, ARankThatWaitsForItsChildIsSaidTo) {
  EXPECT_THAT(report_of("hang_child", "╰"), ContainsRegex("rank 1 waits for child [0-9]+\\."));
}

HASTEN_PROCESS_CASE(hang_traced) {
  const Process process = watched_process();
  if (process.rank() == 1) {
    const pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (ptrace(PTRACE_ATTACH, parent, nullptr, nullptr) != 0) _exit(3);
      while (true) pause();
    }
    sleep(3600);
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatch, ARankThatADebuggerHoldsIsCertainWithItsName) {
  const std::string report = report_of("hang_traced", "╰", 0, 3, {{"HASTEN_HANG_AFTER", "3600"}});

  EXPECT_THAT(report, ContainsRegex("rank 1 is held by process_slow_te[a-z]* \\([0-9]+\\)"));
}

HASTEN_PROCESS_CASE(hang_waits) {
  const Process process = watched_process();
  process.group().barrier();  // behind it nobody needs rank 0's store
  if (process.rank() == 0) {
    (void)!::write(STDOUT_FILENO, "ready\n", 6);
    while (true) pause();
  }
  process.group().barrier();
  return 0;
}

HASTEN_PROCESS_CASE(hang_at_start) {
  const Process process;
  if (process.rank() == 0) raise(SIGSTOP);
  process.group().barrier();
  return 0;
}

// Others may be in the middle of the start, which the stopped rank's store takes part in.
TEST(RunWatch, ARankThatIsStoppedBehindTheMeetingIsSaid) {
  Processes processes(3, "hang_at_start", {{"HASTEN_HANG_AFTER", "3600"}});

  EXPECT_TRUE(processes.wait_for_output(1, text("rank 0 is stopped; kill -CONT ", processes.pid(0))));
}

TEST(RunWatch, AStoppedRankIsSaidByAnotherAfterASecond) {
  Processes processes(3, "hang_waits", {{"HASTEN_HANG_AFTER", "3600"}});
  ASSERT_TRUE(processes.wait_for_output(0, "ready"));

  processes.signal(0, SIGSTOP);

  EXPECT_TRUE(processes.wait_for_output(1, text("rank 0 is stopped; kill -CONT ", processes.pid(0))));
}

TEST(RunWatch, TheCulpritIsKilledIfThatIsAskedFor) {
  Processes processes(3, "hang_waits", {{"HASTEN_HANG_AFTER", "1.5"}, {"HASTEN_ON_HANG", "kill"}});

  const auto results = processes.wait();

  EXPECT_EQ(results[0].exit_code, 128 + SIGKILL);
  EXPECT_EQ(results[1].exit_code, 1) << "the others end with an error of their own";
}

HASTEN_PROCESS_CASE(hang_late) {
  if (variable("RANK") == "1") {
    std::string word;
    std::ifstream(variable("HASTEN_TEST_FIFO")) >> word;
  }
  const Process process;
  return 0;
}

TEST_F(RunWatchFiles, ARankThatDoesNotComeToTheMeetingIsNamedAfterTenSeconds) {
  const std::string fifo = path("start.fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  Processes processes(3, "hang_late", {{"HASTEN_TEST_FIFO", fifo}});

  EXPECT_TRUE(processes.wait_for_output(0, "rank 1 of 3 has not come to group 'world'"));

  std::ofstream(fifo) << "go\n";
  for (const ProcessResult& result : processes.wait()) EXPECT_EQ(result.exit_code, 0) << result.output;
}

HASTEN_PROCESS_CASE(watch_off) {
  const Process process;
  for (const flight::PageView& page : flight::find_pages().pages) {
    if (page.pid() == getpid()) return 3;
  }
  return flight::process_recorder() == nullptr ? 0 : 3;
}

TEST(RunWatch, IsOffWhereThatIsWanted) {
  for (const ProcessResult& result : run_processes(2, "watch_off", {{"HASTEN_WATCH", "off"}})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
}  // namespace hasten::testing
