#include "hasten/process/stop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "hasten/core/error.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten::process {
namespace {

using ::testing::HasSubstr;

volatile sig_atomic_t handled = 0;

void handle(int) {
  handled = handled + 1;
}

// Whether `signal` is handled by `handler` now.
bool is_handled_by(int signal, void (*handler)(int)) {
  struct sigaction now = {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler == handler;
}

class StopSignalsOfOne : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
    handled = 0;
  }
  void TearDown() override { SetUp(); }
};

TEST_F(StopSignalsOfOne, TakeNoteInsteadOfEndingTheProcess) {
  const StopSignals stop;
  EXPECT_FALSE(stop.received());

  std::raise(SIGTERM);

  EXPECT_TRUE(stop.received());
  EXPECT_TRUE(stop.should_stop(comm::Group()));
  EXPECT_FALSE(StopSignals().received()) << "what came before its construction is not its matter";
}

TEST_F(StopSignalsOfOne, CallTheHandlerThatWasThereBefore) {
  std::signal(SIGUSR1, handle);
  {
    const StopSignals stop;
    std::raise(SIGUSR1);
    EXPECT_TRUE(stop.received());
    EXPECT_EQ(handled, 1);
  }

  std::raise(SIGUSR1);
  EXPECT_EQ(handled, 2) << "and leave it in place";
}

TEST_F(StopSignalsOfOne, TheLastOnesEndGivesTheSignalsBack) {
  auto first = std::make_unique<StopSignals>(), second = std::make_unique<StopSignals>();

  first.reset();
  EXPECT_FALSE(is_handled_by(SIGTERM, SIG_DFL));
  second.reset();
  EXPECT_TRUE(is_handled_by(SIGTERM, SIG_DFL));
}

TEST_F(StopSignalsOfOne, ASignalThatComesAfterTheStopDoesNotDisturbTheEnd) {
  {
    const StopSignals stop;
    std::raise(SIGUSR1);
    EXPECT_TRUE(stop.should_stop(comm::Group()));
  }

  std::raise(SIGUSR1);

  EXPECT_FALSE(is_handled_by(SIGUSR1, SIG_DFL));
}

TEST_F(StopSignalsOfOne, AHandlerThatSomebodySetSinceStays) {
  {
    const StopSignals stop;
    std::signal(SIGTERM, handle);
  }
  EXPECT_TRUE(is_handled_by(SIGTERM, handle));

  const StopSignals again;
  std::raise(SIGTERM);
  EXPECT_TRUE(again.received());
  EXPECT_EQ(handled, 1);
}

TEST_F(StopSignalsOfOne, ASignalThatCannotBeCaughtIsRefused) {
  EXPECT_THROW(StopSignals({SIGKILL}), UsageError);
  EXPECT_THROW(StopSignals({SIGTERM, SIGKILL}), UsageError);
  EXPECT_TRUE(is_handled_by(SIGTERM, SIG_DFL)) << "nothing is left of what was refused";
  EXPECT_THROW(StopSignals({0}), UsageError);
  const StopSignals stop({SIGUSR1});
  EXPECT_TRUE(is_handled_by(SIGTERM, SIG_DFL)) << "only those asked for";
}

// A training loop that never ends by itself.
HASTEN_PROCESS_CASE(stop_loop) {
  const Process process;
  const StopSignals stop;
  int64_t step = 0;
  while (!stop.should_stop(process.group())) {
    if (++step == 1) std::cout << "looping" << std::endl;
  }
  std::cout << "stopped after " << step << std::endl;
  return 0;
}

TEST(StopSignalsRanks, OneRanksSignalStopsAllAtTheSameStep) {
  testing::Processes processes(3, "stop_loop");
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(processes.wait_for_output(rank, "looping"));

  processes.signal(1, SIGTERM);

  const auto results = processes.wait();
  const std::string last = results[0].output.substr(results[0].output.find("stopped after"));
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(last));
  }
}

}  // namespace
}  // namespace hasten::process
