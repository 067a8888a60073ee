#include "tracking/follower/bridge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <sstream>
#include <thread>

#include "hasten/core/error.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using ::testing::HasSubstr;

class Bridges : public hasten::testing::InFolder {
 protected:
  // Follows a finished run by a "Python" that is this shell script.
  SinkState follow(const std::string& script) {
    Trackers trackers(setup_in(folder_, {"journal"}));
    trackers.init("p");
    trackers.log({{"x", 1}}, 0);
    trackers.finish();
    const std::string python = write("python", "#!/bin/sh\necho $$ >> " + path("pids") + "\n" + script);
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
    Follower follower({.journal = folder_ / "p/run/journal.jsonl",
                       .sinks = {{.name = "wandb", .options = {}, .tracker = {}}},
                       .environment = environment_with({{"HASTEN_TRACKER_PYTHON", python}}),
                       .warn =
                           [&](const std::string& line) {
                             const std::lock_guard lock(mutex_);
                             said_ += line + "\n";
                           },
                       .first_backoff_s = 0.01,
                       .bridge_timeout_s = 0.3});
    follower.close();
    follower.wait(std::chrono::seconds(30));
    return follower.states().front();
  }
  std::vector<pid_t> pids() const {
    std::istringstream lines(text_of(path("pids")));
    std::vector<pid_t> all;
    for (pid_t pid = 0; lines >> pid;) all.push_back(pid);
    return all;
  }
  std::mutex mutex_;
  std::string said_;
};

TEST_F(Bridges, AClientThatNeverAnswersIsEndedAndStartedAgainThreeTimes) {
  const SinkState state = follow("exec sleep 1000\n");

  EXPECT_TRUE(state.parked);
  EXPECT_FALSE(state.done);
  EXPECT_THAT(state.error, HasSubstr("without a word"));
  ASSERT_EQ(pids().size(), 4u);
  for (const pid_t pid : pids()) EXPECT_NE(kill(pid, 0), 0) << pid;
  EXPECT_THAT(said_, HasSubstr("hasten track sync"));
}

TEST_F(Bridges, RubbishIsNoAnswerAndTheExitCodeIsNamed) {
  const SinkState state = follow("echo rubbish\necho '{\"offset\":\"x\"}'\nexit 5\n");

  EXPECT_TRUE(state.parked);
  EXPECT_THAT(state.error, HasSubstr("with exit code 5"));
  EXPECT_EQ(state.position.offset, 0);
  EXPECT_EQ(pids().size(), 4u);
}

TEST_F(Bridges, AClientThatCannotStartIsGivenUpAtOnceWithItsOwnWords) {
  const SinkState state = follow("echo '{\"fatal\":\"wandb cannot start: TypeError: unexpected keyword\"}'\nsleep 1\n");

  EXPECT_TRUE(state.parked);
  EXPECT_EQ(state.error, "[tracking] wandb cannot start: TypeError: unexpected keyword");
  EXPECT_EQ(pids().size(), 1u);
}

TEST(BridgeProgram, IsTheEmbeddedText) {
  EXPECT_THAT(std::string(bridge_program()), HasSubstr("class Wandb(Client)"));
}

}  // namespace
}  // namespace hasten::tracking
