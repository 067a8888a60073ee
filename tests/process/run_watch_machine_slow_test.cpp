// Hangs of a run that its machine makes: a file server that does not answer, a cgroup's limits, packets that are lost.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "cli/machines.h"
#include "hasten/core/env.h"
#include "hasten/core/text.h"
#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"
#include "support/folder.h"
#include "support/processes.h"
#include "support/silent_files.h"
#include "support/test_cgroup.h"

namespace hasten::testing {
namespace {

using process::Process;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string setting(const char* name) {
  return Environment::current().text(name).value_or("");
}

/// What rank 0 of 2 says until the end of a report; the ranks are killed then.
std::string report_of_both(Processes& processes) {
  EXPECT_TRUE(processes.wait_for_output(0, "╰")) << "nothing was said";
  for (int rank = 0; rank < 2; ++rank) processes.signal(rank, SIGKILL);
  return processes.wait()[0].output;
}

HASTEN_PROCESS_CASE(hang_open) {
  const bool is_mine = setting("RANK") == "1";
  if (is_mine && SilentFiles::mount_at(setting("HASTEN_TEST_FOLDER"), SilentFiles::Silent::kOpen) != 0) return 3;
  const Process process;
  if (is_mine) {
    const flight::PhaseScope scope("data");
    (void)open((setting("HASTEN_TEST_FOLDER") + "/samples.bin").c_str(), O_RDONLY);
  }
  process.group().barrier();
  return 0;
}

HASTEN_PROCESS_CASE(hang_write) {
  const bool is_mine = setting("RANK") == "1";
  if (is_mine && SilentFiles::mount_at(setting("HASTEN_TEST_FOLDER"), SilentFiles::Silent::kWrite) != 0) return 3;
  const Process process;
  if (is_mine) {
    const flight::PhaseScope scope("checkpoint");
    const int file = open((setting("HASTEN_TEST_FOLDER") + "/model.safetensors").c_str(), O_WRONLY);
    (void)!::write(file, "weights", 7);
  }
  process.group().barrier();
  return 0;
}

class RunWatchServer : public InFolder {
 protected:
  void SetUp() override {
    const int reason = SilentFiles::why_not(folder_);
    if (reason != 0) GTEST_SKIP() << "this machine lets a test mount no FUSE folder: " << std::strerror(reason);
  }

  std::string report_of(const std::string& case_name) const {
    Processes processes(2, case_name, {{"HASTEN_HANG_AFTER", "1.5"}, {"HASTEN_TEST_FOLDER", folder_}});
    return report_of_both(processes);
  }
};

TEST_F(RunWatchServer, AFileServerThatDoesNotAnswerAnOpenIsNamedByThePath) {
  const std::string report = report_of("hang_open");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("data; its last was the meeting"));
  EXPECT_THAT(report, HasSubstr("opens " + path("samples.bin") + "."));
}

TEST_F(RunWatchServer, AWriteThatDoesNotReachTheDiskIsNamedByThePath) {
  const std::string report = report_of("hang_write");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("checkpoint; its last was the meeting"));
  EXPECT_THAT(report, HasSubstr("writes " + path("model.safetensors") + "."));
}

HASTEN_PROCESS_CASE(hang_without_cores) {
  const Process process;
  process.group().barrier();
  if (process.rank() == 1) {
    (void)!::write(STDOUT_FILENO, "ready\n", 6);
    for (volatile unsigned count = 0;;) count = count + 1;
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatchCgroup, ARankThatGetsAHundredthOfACoreIsThrottledByItsCgroup) {
  const TestCgroup cgroup(TestCgroup::Limit::kHundredthOfACore);
  if (!cgroup.is_there()) GTEST_SKIP() << "this machine lets a test make no cgroup with a quota of cores";
  Processes processes(2, "hang_without_cores", {{"HASTEN_HANG_AFTER", "1.5"}});
  ASSERT_TRUE(processes.wait_for_output(1, "ready"));
  ASSERT_TRUE(cgroup.take(processes.pid(1)));

  const std::string report = report_of_both(processes);

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, ContainsRegex("rank 1 is throttled by its cgroup: it gets [0-9] % of a core\\."));
}

HASTEN_PROCESS_CASE(hang_without_memory) {
  const Process process;
  process.group().barrier();
  if (process.rank() == 1) {
    (void)!::write(STDOUT_FILENO, "ready\n", 6);
    std::vector<std::string> pages;
    for (; pages.size() < 512; usleep(10'000)) pages.emplace_back(1 << 20, 'x');
  }
  process.group().barrier();
  return 0;
}

TEST(RunWatchCgroup, ARankAboveItsLimitOfMemoryIsThrottledByItsCgroup) {
  const TestCgroup cgroup(TestCgroup::Limit::kMemory);
  if (!cgroup.is_there()) GTEST_SKIP() << "this machine lets a test make no cgroup with memory.high (version 2)";
  Processes processes(2, "hang_without_memory", {{"HASTEN_HANG_AFTER", "1.5"}});
  ASSERT_TRUE(processes.wait_for_output(1, "ready"));
  ASSERT_TRUE(cgroup.take(processes.pid(1)));

  const std::string report = report_of_both(processes);

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("rank 1 is throttled by its cgroup: its memory is at the limit (memory.high)."));
}

// Ends by itself if nothing is said.
HASTEN_PROCESS_CASE(hang_packets) {
  const Process process({.cpu = true, .timeout = std::chrono::seconds(60), .backend = comm::BackendKind::kGloo});
  const at::Tensor values = torch::ones({300'000});
  process.group().all_reduce_(values);
  std::fprintf(stderr, "ready\n");
  while (access(setting("HASTEN_TEST_FILE").c_str(), F_OK) != 0) usleep(10'000);
  process.group().all_reduce_(values);
  return 0;
}

/// Ranks of one host, each in a network of its own.
class RunWatchPackets : public test::Machines {
 protected:
  std::unique_ptr<test::Command> start(int rank) const {
    auto variables = environment();
    variables.insert({{"HASTEN_TEST_CASE", "hang_packets"},
                      {"HASTEN_HANG_AFTER", "1.5"},
                      {"HASTEN_TEST_FILE", go_},
                      {"RANK", text(rank)},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_RANK", text(rank)},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", address(0)},
                      {"MASTER_PORT", "29519"},
                      {"GLOO_SOCKET_IFNAME", "eth0"}});
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    return std::make_unique<test::Command>(on_machine(rank, {program}), variables);
  }

  static std::string errors_until(const test::Command& command, const std::string& words) {
    std::string said;
    while (said.find(words) == std::string::npos) {
      const std::string more = command.read_some_errors();
      if (more.empty()) break;
      said += more;
    }
    return said;
  }

  const std::string go_ = folder() / "go";
};

TEST_F(RunWatchPackets, PacketsThatAreLostInAReductionNameTheConnectionAndItsBytes) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;
  const auto first = start(0), second = start(1);
  EXPECT_THAT(errors_until(*first, "ready"), HasSubstr("ready"));
  EXPECT_THAT(errors_until(*second, "ready"), HasSubstr("ready"));

  cut_cable(1);
  std::ofstream(go_) << "go";
  const std::string report = errors_until(*first, "╰");

  for (const int machine : {0, 1}) kill_all_on(machine, {});
  EXPECT_THAT(report, HasSubstr("all ranks of 2 are in one call, and its data do not come"));
  EXPECT_THAT(report,
              HasSubstr("all_reduce 2 of 'world': sum of float32 [300000] at run_watch_machine_slow_test.cpp:"));
  EXPECT_THAT(report, ContainsRegex("rank 0 -> 10\\.77\\.0\\.2:[0-9]+: [0-9]+ bytes are unacknowledged for "));
  EXPECT_THAT(report, ContainsRegex("rank 1 -> 10\\.77\\.0\\.1:[0-9]+: [0-9]+ bytes are unacknowledged for "));
}

}  // namespace
}  // namespace hasten::testing
