#include "hasten/launch/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "hasten/core/error.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

// What `function` returned or threw, and what was written to standard error meanwhile.
struct Result {
  int exit_code = -1;
  std::string errors;
};

Result run(int num_processes, const std::function<int()>& function, const LaunchOptions& options = {}) {
  testing::internal::CaptureStderr();
  const int exit_code = launch(num_processes, function, options);
  return {exit_code, testing::internal::GetCapturedStderr()};
}

TEST(Launch, EveryProcessFindsItsPlaceInTheEnvironment) {
  const fs::path folder = fs::path(testing::TempDir()) / ("hasten_launch_test_" + std::to_string(getpid()));
  fs::create_directories(folder);

  const int exit_code = launch(3, [&] {
    const auto environment = Environment::current();
    const int64_t rank = environment.integer("RANK").value();
    std::ofstream(folder / std::to_string(rank))
        << environment.integer("WORLD_SIZE").value() << ' ' << environment.integer("LOCAL_RANK").value();
  });

  EXPECT_EQ(exit_code, 0);
  for (const char* rank : {"0", "1", "2"}) {
    std::ifstream file(folder / rank);
    std::string world_size, local_rank;
    file >> world_size >> local_rank;
    EXPECT_EQ(world_size, "3");
    EXPECT_EQ(local_rank, rank);
  }
  fs::remove_all(folder);
}

TEST(Launch, GivesTheFirstFailuresExitCodeAndStopsTheOthers) {
  const Result result = run(2, [] { return Environment::current().integer("RANK") == 1 ? 7 : pause(); });

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.errors,
              MatchesRegex("hasten: rank 1 of 2 failed first: exit code 7 \\(local rank 1, pid [0-9]+\\)\n"
                           "  the others: killed by SIGTERM \\(rank 0\\)\n"));
}

TEST(Launch, AnExceptionIsSaidAndReportedAndEndsTheProcessWith1) {
  const Result result = run(1, []() -> int { throw std::runtime_error("no more paper"); });

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, StartsWith("no more paper\nhasten: rank 0 of 1 failed first: exit code 1 "));
  EXPECT_THAT(result.errors, HasSubstr("\n  message: no more paper\n"));
}

TEST(Launch, AUsageErrorEndsTheProcessWith2) {
  EXPECT_EQ(run(1, []() -> int { throw UsageError({"mesh"}, "wrong"); }).exit_code, 2);
  EXPECT_EQ(run(1, []() -> int { throw 3; }).exit_code, 1);
}

TEST(Launch, ACrashGives128PlusTheSignal) {
  EXPECT_EQ(run(1, [] { return raise(SIGKILL); }).exit_code, 137);
}

TEST(Launch, WhatAWorkerPrintedWithoutANewlineIsNotLostAndComesOnce) {
  testing::internal::CaptureStdout();

  std::cout << "before ";
  launch(1, [] { std::cout << "worker "; });
  std::cout << "after" << std::flush;

  EXPECT_EQ(testing::internal::GetCapturedStdout(), "before worker after");
}

TEST(Launch, RefusesToForkAProcessWithSeveralThreads) {
  std::mutex mutex;
  mutex.lock();
  std::jthread other([&] { const std::lock_guard wait_for_the_end(mutex); });

  std::string message;
  try {
    launch(2, [] {});
  } catch (const UsageError& error) {
    message = error.what();
  }
  mutex.unlock();

  EXPECT_EQ(
      message,
      "[launch] this process has 2 threads, and a fork takes only one along; expected 1. Call hasten::launch "
      "first in main, before libtorch computes anything, or start the program with `hasten launch -n …`.");
}

TEST(Launch, OptionsOutOfRangeAreUsageErrors) {
  const auto nothing = [] {};

  EXPECT_THROW(launch(0, nothing), UsageError);
  EXPECT_THROW(launch(1, nothing, {.master_port = 65536}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.shutdown_timeout_s = -1}), UsageError);
}

TEST(Launch, AMasterAddressAndPortAreHandedOn) {
  const auto check = [] {
    const auto environment = Environment::current();
    return environment.text("MASTER_ADDR") == "127.0.0.2" && environment.integer("MASTER_PORT") > 0 ? 0 : 1;
  };

  EXPECT_EQ(launch(1, check, {.master_addr = "127.0.0.2"}), 0);
}

}  // namespace
}  // namespace hasten
