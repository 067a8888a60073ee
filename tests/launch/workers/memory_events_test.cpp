#include "launch/workers/memory_events.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace hasten::launcher {
namespace {

// A folder with files of /proc and /sys as a kernel would show them.
class MemoryEventsTest : public ::testing::Test {
 protected:
  ~MemoryEventsTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }

  std::string root_ = ::testing::TempDir() + "hasten_memory_events_test_" + std::to_string(getpid());
};

TEST_F(MemoryEventsTest, ReadsTheCountersOfCgroupVersion2) {
  write("/proc/self/cgroup", "0::/user.slice/job_7\n");
  write("/sys/fs/cgroup/user.slice/job_7/memory.events", "low 0\nhigh 1\nmax 30\noom 4\noom_kill 3\n");
  write("/sys/fs/cgroup/user.slice/job_7/memory.max", "2147483648\n");
  write("/proc/vmstat", "pgfault 12\noom_kill 5\n");

  const MemoryEvents events = read_memory_events(root_);

  EXPECT_EQ(events.cgroup_kills, 3);
  EXPECT_EQ(events.cgroup_limit_bytes, int64_t{1} << 31);
  EXPECT_EQ(events.machine_kills, 5);
}

TEST_F(MemoryEventsTest, ReadsTheCountersOfCgroupVersion1) {
  write("/proc/self/cgroup", "8:pids:/other\n5:devices:/\n4:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");

  const MemoryEvents events = read_memory_events(root_);

  EXPECT_EQ(events.cgroup_kills, 2);
  EXPECT_EQ(events.cgroup_limit_bytes, std::nullopt);
}

TEST_F(MemoryEventsTest, FindsItsOwnFolderInAContainerThatSeesNoOther) {
  write("/proc/self/cgroup", "0::/docker/1234\n");
  write("/sys/fs/cgroup/memory.events", "oom_kill 1\n");
  write("/sys/fs/cgroup/memory.max", "max\n");

  const MemoryEvents events = read_memory_events(root_);

  EXPECT_EQ(events.cgroup_kills, 1);
  EXPECT_EQ(events.cgroup_limit_bytes, std::nullopt);
}

TEST_F(MemoryEventsTest, KnowsNothingWhereNothingCanBeRead) {
  const MemoryEvents events = read_memory_events(root_);

  EXPECT_EQ(events.cgroup_kills, std::nullopt);
  EXPECT_EQ(events.machine_kills, std::nullopt);
}

TEST(ExplainKill, NamesTheLimitOnlyIfTheKillerWasAtWork) {
  const MemoryEvents before{.cgroup_kills = 2, .cgroup_limit_bytes = int64_t{3} << 29, .machine_kills = 4};
  MemoryEvents cgroup = before, machine = before;
  cgroup.cgroup_kills = 3;
  machine.machine_kills = 5;

  EXPECT_EQ(explain_kill(before, cgroup),
            "the cgroup's memory limit of 1.50 GiB was reached: the out-of-memory killer ended processes "
            "in it during this run (1)");
  EXPECT_NE(explain_kill(before, machine).find("the machine ran out of memory"), std::string::npos);
  EXPECT_NE(explain_kill(before, before).find("was not at work"), std::string::npos);
  EXPECT_NE(explain_kill({}, {}).find("most often a memory limit"), std::string::npos);
}

}  // namespace
}  // namespace hasten::launcher
