#include "hasten/process/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/process/distributed_type.h"

namespace hasten::process {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Rank 2 of 4 on two machines of two.
Process third_of_four() {
  return Process({.rank = 2, .local_rank = 0, .node_rank = 1, .world_size = 4, .local_world_size = 2}, comm::Group());
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Process, StartedByHandIsAWorldOfOneWithoutABackend) {
  const Process process({}, Environment::of({}));

  EXPECT_EQ(process.world_size(), 1);
  EXPECT_TRUE(process.is_main_process() && process.is_local_main_process() && process.is_last_process());
  EXPECT_EQ(process.group().backend_name(), "none");
}

TEST(Process, StaysOnTheCpuWhenAsked) {
  EXPECT_TRUE(Process({.cpu = true}, Environment::of({})).device().is_cpu());
  EXPECT_TRUE(Process({}, Environment::of({{"ACCELERATE_USE_CPU", "True"}})).device().is_cpu());
}

TEST(Process, AHalfSetEnvironmentIsAUsageError) {
  EXPECT_THAT(message_of([] { Process({}, Environment::of({{"WORLD_SIZE", "2"}})); }), HasSubstr("but not RANK"));
}

TEST(Process, ATimeoutWithoutLengthIsRefused) {
  const auto words = [](int64_t ms) {
    return message_of([=] { Process({.timeout = std::chrono::milliseconds(ms)}, Environment::of({})); });
  };

  EXPECT_THAT(words(0), HasSubstr("timeout is 0 ms; expected the time that ranks wait for each other, more than 0."));
  EXPECT_THAT(words(-1), HasSubstr("timeout is -1 ms"));
  EXPECT_EQ(words(1), "no UsageError");
}

TEST(Process, RunsAFunctionOnTheChosenRanksOnly) {
  const Process process = third_of_four();
  std::vector<std::string> ran;
  const auto note = [&](const char* what) { return [&ran, what] { ran.emplace_back(what); }; };

  process.on_main_process(note("main"));
  process.on_local_main_process(note("local main"));
  process.on_last_process(note("last"));
  process.on_process(2, note("rank 2"));
  process.on_process(3, note("rank 3"));
  process.on_local_process(0, note("local 0"));
  process.on_local_process(1, note("local 1"));

  EXPECT_THAT(ran, ElementsAre("local main", "rank 2", "local 0"));
}

TEST(Process, ARankOutsideTheWorldIsRefused) {
  const Process process = third_of_four();

  EXPECT_THAT(message_of([&] { process.on_process(4, [] {}); }), HasSubstr("rank 4 in a world of 4"));
  EXPECT_THAT(message_of([&] { process.on_local_process(2, [] {}); }), HasSubstr("local rank 2 on a machine of 2"));
}

TEST(Process, ItsLoggerCarriesTheRank) {
  std::string line;
  Logger logger = third_of_four().logger("train");
  logger.redirect([&](std::string_view text) { line = text; });

  logger.error("stop", {.main_process_only = false});

  EXPECT_THAT(line, HasSubstr("rank 2/4: stop"));
}

TEST(Process, ItsDistributedTypeIsThatOfItsDevice) {
  EXPECT_EQ(distributed_type(Process(RankInfo{}, comm::Group())), DistributedType::kNo);
  EXPECT_EQ(distributed_type(third_of_four()), DistributedType::kMultiCpu);
  EXPECT_EQ(distributed_type(Process({.world_size = 2}, comm::Group(), c10::Device(c10::kCUDA, 0))),
            DistributedType::kMultiGpu);
}

}  // namespace
}  // namespace hasten::process
