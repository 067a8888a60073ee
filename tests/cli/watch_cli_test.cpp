// ps, watch and stacks, about ranks that are forks of this test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cli/beside_ranks.h"
#include "hasten/core/text.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/stacks.h"
#include "hasten/flight/watcher.h"

// Outside of hasten's namespace, as a program's own function.
__attribute__((noinline)) void count_losses_twice() {
  static std::mutex mutex;
  mutex.lock();
  mutex.lock();
  asm volatile("");
}

namespace hasten::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two ranks: 0 waits for 1 in a barrier, 1 in a lock of its own.
class WatchedRun : public ::testing::Test {
 protected:
  WatchedRun() {
    EXPECT_EQ(pipe(ends_), 0);
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t child = fork();
      if (child == 0) run(rank);
      pids_.push_back(child);
    }
    char byte;
    for (size_t i = 0; i < pids_.size(); ++i) EXPECT_EQ(read(ends_[0], &byte, 1), 1);
  }
  ~WatchedRun() override {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    close(ends_[0]), close(ends_[1]);
  }
  std::string pid(size_t rank) const { return std::to_string(pids_[rank]); }
  std::string run_id() const { return text("run-", getpid()); }

 private:
  [[noreturn]] void run(int rank) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto recorder = std::make_shared<flight::Recorder>(flight::PageIdentity{.run = text("watched ", getppid()),
                                                                                  .run_id = text("run-", getppid()),
                                                                                  .rank = rank,
                                                                                  .world_size = 2,
                                                                                  .local_rank = rank,
                                                                                  .local_world_size = 2});
    const int group = recorder->open_group("world", rank, 2, 1000);
    for (int i = 0; i < 8; ++i) recorder->step(64);
    const flight::Watcher watcher(recorder,
                                  {.limits = {.after_s = 3600}, .stack_signal = flight::default_stack_signal()});
    if (rank == 0) recorder->post({.group = group, .label = {"barrier"}, .file = "train.cpp", .line = 5});
    (void)!write(ends_[1], "r", 1);
    if (rank == 1) count_losses_twice();
    while (true) pause();
  }

  int ends_[2] = {-1, -1};
  std::vector<pid_t> pids_;
};

TEST_F(WatchedRun, IsListedByPs) {
  const auto result = run_beside_ranks("ps");

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("RUN "));
  EXPECT_THAT(result.out, ContainsRegex(run_id() + " +cli_cli_tests +2 "));  // columns fit all runs of the machine
}

TEST_F(WatchedRun, AStoppedRankIsItsState) {
  kill(std::stoi(pid(1)), SIGSTOP);
  int status;
  waitpid(std::stoi(pid(1)), &status, WUNTRACED);

  EXPECT_THAT(run_beside_ranks("ps").out, HasSubstr("rank 1 stopped"));
  EXPECT_THAT(run_beside_ranks("stacks " + run_id()).out,
              HasSubstr("rank 1 (pid " + pid(1) + "): is stopped; kill -CONT " + pid(1) + " lets it go on"));
}

TEST_F(WatchedRun, StacksNameTheFunctionsOfTheProgram) {
  const auto result = run_beside_ranks("stacks --rank 1 " + run_id());

  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("rank 1 (pid " + pid(1) + "): its own code\n  main: sleeps in a lock\n"));
  EXPECT_THAT(result.out, HasSubstr("count_losses_twice ("));
  EXPECT_THAT(result.out, Not(HasSubstr("rank 0")));
  EXPECT_THAT(run_beside_ranks("stacks " + pid(0)).out, HasSubstr("rank 0 (pid " + pid(0) + "): waits in barrier 1"));
  EXPECT_EQ(run_beside_ranks("stacks --rank 7 " + run_id()).exit_code, 2);
}

TEST_F(WatchedRun, WatchShowsALineARank) {
  const auto result = run_beside_ranks("watch --once " + run_id());

  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("rank  step  samples/s  own  wait"));
  EXPECT_THAT(result.out, HasSubstr("waits in barrier 1\n"));
}

TEST_F(WatchedRun, AnotherNameIsAnErrorWithTheOneThatWasMeant) {
  // The prefix is wrong, not the number: runs of other tests have a number that is as near.
  const std::string wrong = "rum" + run_id().substr(3);
  const auto result = run_beside_ranks("stacks " + wrong);

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("there is no run '" + wrong + "', did you mean '" + run_id() + "'?"));
}

}  // namespace
}  // namespace hasten::test
