#include "hasten/core/cpu_quota.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace hasten {
namespace {

namespace fs = std::filesystem;

// /proc and /sys of another machine.
class CpuQuota : public ::testing::Test {
 protected:
  CpuQuota() {
    std::string name = ::testing::TempDir() + "hasten_quota_XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~CpuQuota() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& line) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << line << "\n";
  }
  std::string root_;
};

TEST_F(CpuQuota, WithoutAQuotaThereIsNone) {
  EXPECT_FALSE(cpu_quota(root_));

  write("/proc/self/cgroup", "0::/job");
  write("/sys/fs/cgroup/job/cpu.max", "max 100000");

  EXPECT_FALSE(cpu_quota(root_));
}

TEST_F(CpuQuota, OfVersionTwoIsRoundedUpAndAncestorsCount) {
  write("/proc/self/cgroup", "0::/a/b");
  write("/sys/fs/cgroup/a/b/cpu.max", "350000 100000");
  EXPECT_EQ(cpu_quota(root_), 4);

  write("/sys/fs/cgroup/a/cpu.max", "150000 100000");
  EXPECT_EQ(cpu_quota(root_), 2);

  // A container that sees only its own group.
  write("/sys/fs/cgroup/cpu.max", "10000 100000");
  EXPECT_EQ(cpu_quota(root_), 1);
}

TEST_F(CpuQuota, OfVersionOneCounts) {
  write("/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/pod/job");
  write("/sys/fs/cgroup/cpu,cpuacct/pod/job/cpu.cfs_quota_us", "-1");
  write("/sys/fs/cgroup/cpu,cpuacct/pod/job/cpu.cfs_period_us", "100000");
  EXPECT_FALSE(cpu_quota(root_));

  write("/sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "250000");
  write("/sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root_), 3);
}

TEST_F(CpuQuota, UsableCpusAreAtMostTheQuota) {
  write("/proc/self/cgroup", "0::/");
  write("/sys/fs/cgroup/cpu.max", "100000 100000");

  EXPECT_EQ(usable_cpus(root_), 1);
  EXPECT_GE(usable_cpus(root_ + "/none"), 1);
}

}  // namespace
}  // namespace hasten
