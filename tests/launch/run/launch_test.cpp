#include "hasten/launch/run/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "hasten/core/error.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// What `function` returned or threw, and what was written to standard error meanwhile.
struct Result {
  int exit_code = -1;
  std::string errors;
};

Result run(int num_processes, const std::function<int()>& function, const LaunchOptions& options = {}) {
  ::testing::internal::CaptureStderr();
  const int exit_code = launch(num_processes, function, options);
  return {exit_code, ::testing::internal::GetCapturedStderr()};
}

TEST(Launch, EveryProcessFindsItsPlaceInTheEnvironment) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("hasten_launch_test_" + std::to_string(getpid()));
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

TEST(Launch, AFunctionThatTakesANumberGetsItsRank) {
  const int exit_code = launch(2, [](int rank) { return Environment::current().integer("RANK") == rank ? 0 : 3; });

  EXPECT_EQ(exit_code, 0);
  EXPECT_EQ(launch(2, [](int rank) { return rank == 1 ? 4 : 0; }, {.shutdown_timeout_s = 5}), 4);
}

TEST(Launch, PrecisionAndDeviceOfTheWorkersAreOptions) {
  const auto check = [](const std::string& precision, const char* cpu) {
    const auto environment = Environment::current();
    return environment.text("ACCELERATE_MIXED_PRECISION") == precision && environment.text("ACCELERATE_USE_CPU") == cpu
               ? 0
               : 3;
  };

  EXPECT_EQ(launch(1, [&] { return check("bf16", "True"); }, {.mixed_precision = "bf16", .cpu = true}), 0);
  EXPECT_EQ(debug_launch([&] { return Environment::current().integer("WORLD_SIZE") == 2 ? check("no", "True") : 4; }),
            0);
  EXPECT_THAT([] { launch(1, [] {}, {.mixed_precision = "fp9"}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("did you mean 'fp8'? Expected one of no, fp16")));
}

TEST(Launch, GivesTheFirstFailuresExitCodeAndStopsTheOthers) {
  const Result result = run(2, [] { return Environment::current().integer("RANK") == 1 ? 7 : pause(); });

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.errors, MatchesRegex("╭ hasten: rank 1 of 2 failed first: exit code 7\n"
                                          "│ local rank 1, host .*, pid [0-9]+, 20..-..-.. ..:..:..\n"
                                          "╰ exit code 7; the others: killed by SIGTERM \\(rank 0\\)\n"));
}

TEST(Launch, AnExceptionIsSaidAndReportedAndEndsTheProcessWith1) {
  const Result result = run(1, []() -> int { throw std::runtime_error("no more paper"); });

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, StartsWith("no more paper\n╭ hasten: rank 0 of 1 failed first: exit code 1\n"));
  EXPECT_THAT(result.errors, HasSubstr("\n│ message: no more paper\n"));
  EXPECT_THAT(result.errors, Not(HasSubstr("its last lines")));  // the message is among them
}

TEST(Launch, AUsageErrorEndsTheProcessWith2) {
  EXPECT_EQ(run(1, []() -> int { throw UsageError({"mesh"}, "wrong"); }).exit_code, 2);
  EXPECT_EQ(run(1, []() -> int { throw 3; }).exit_code, 1);
}

TEST(Launch, ACrashGives128PlusTheSignal) {
  EXPECT_EQ(run(1, [] { return raise(SIGKILL); }).exit_code, 137);
}

TEST(Launch, WhatAWorkerPrintedWithoutANewlineIsNotLostAndComesOnce) {
  ::testing::internal::CaptureStdout();

  std::cout << "before ";
  launch(1, [] { std::cout << "worker "; });
  std::cout << "after" << std::flush;

  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "before worker after");
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

  EXPECT_EQ(message,
            "[launch] this process has 2 threads, and a fork takes only one along; expected 1. Call hasten::launch "
            "first in main, before libtorch computes anything, or start the program with `hasten launch -n …`.");
}

TEST(Launch, OptionsOutOfRangeAreUsageErrors) {
  const auto nothing = [] {};

  EXPECT_THROW(launch(0, nothing), UsageError);
  EXPECT_THROW(launch(1, nothing, {.run = {.master_port = 65536}}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.shutdown_timeout_s = -1}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.run = {.max_restarts = -1}}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.monitor_interval_s = -1}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.redirects = "4"}), UsageError);
  EXPECT_THROW(launch(1, nothing, {.local_ranks_filter = {1}}), UsageError);
}

TEST(Launch, ATimeoutWithoutLengthIsRefusedWithItsNameValueAndDefault) {
  const auto refused = [](double seconds) {
    return ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr(
        text("join_timeout_s is ", seconds,
             " s; expected the time to wait for the other machines, above 0 and up to 1e9. Leave it out for 600.")));
  };

  EXPECT_THAT([] { launch(1, [] {}, {.join_timeout_s = 0}); }, refused(0));
  EXPECT_THAT([] { launch(1, [] {}, {.join_timeout_s = -5}); }, refused(-5));
}

TEST(Launch, AFailedGroupIsStartedAgainWithANewAttemptNumberAndANewPort) {
  int printed[2];
  ASSERT_EQ(pipe(printed), 0);
  ::testing::internal::CaptureStdout();

  const Result result = run(2,
                            [&] {
                              const auto environment = Environment::current();
                              const int64_t attempt = environment.integer("TORCHELASTIC_RESTART_COUNT").value();
                              char byte = 0;
                              if (environment.integer("RANK") == 1)
                                return read(printed[0], &byte, 1) == 1 && attempt == 2 ? 0 : 3;
                              std::cout << attempt << " at " << environment.integer("MASTER_PORT").value() << '\n'
                                        << std::flush;
                              const bool said = write(printed[1], &byte, 1) == 1;
                              return attempt < 2 ? pause() : said ? 0 : 1;
                            },
                            {.run = {.max_restarts = 3}, .monitor_interval_s = 0});

  std::istringstream lines(::testing::internal::GetCapturedStdout());
  std::string before;
  for (const char* attempt : {"0", "1", "2"}) {
    std::string count, at, port;
    lines >> count >> at >> port;
    EXPECT_EQ(count, attempt);
    EXPECT_NE(port, before);
    before = port;
  }
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.errors,
            "hasten: worker 1 failed: exit code 3; restart 1 of 3 in 0 s\n"
            "hasten: worker 1 failed: exit code 3; restart 2 of 3 in 0 s\n");
  close(printed[0]);
  close(printed[1]);
}

TEST(Launch, AMasterAddressAndPortAreHandedOn) {
  const auto check = [] {
    const auto environment = Environment::current();
    return environment.text("MASTER_ADDR") == "127.0.0.2" && environment.integer("MASTER_PORT") > 0 ? 0 : 1;
  };

  EXPECT_EQ(launch(1, check, {.run = {.master_addr = "127.0.0.2"}}), 0);
}

}  // namespace
}  // namespace hasten
