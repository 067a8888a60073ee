#include "flight/cgroup.h"

#include <gtest/gtest.h>

#include "support/folder.h"

namespace hasten::flight {
namespace {

using Cgroup = testing::InFolder;

constexpr const char* kPressure =
    "some avg10=1.00 avg60=0.20 avg300=0.00 total=%\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

std::string pressure(const std::string& total) {
  std::string words = kPressure;
  return words.replace(words.find('%'), 1, total);
}

TEST_F(Cgroup, OfVersionTwoIsReadAtItsPathOrAtTheTopOfAContainer) {
  write("jobs/a/cpu.stat", "usage_usec 12\nnr_periods 9\nnr_throttled 4\n");
  write("jobs/a/memory.pressure", pressure("350"));
  write("jobs/a/memory.high", "1000\n");
  write("jobs/a/memory.current", "970\n");
  write("cpu.stat", "nr_throttled 1\n");
  write("memory.high", "max\n");
  write("memory.current", "970\n");

  const CgroupTotals own = read_cgroup("0::/jobs/a\n", folder_);
  const CgroupTotals top = read_cgroup("0::/not/seen/here\n", folder_);

  EXPECT_EQ(own.throttled_periods, 4);
  EXPECT_EQ(own.memory_stall_us, 350);
  EXPECT_TRUE(own.is_at_memory_limit);
  EXPECT_EQ(top.throttled_periods, 1);
  EXPECT_EQ(top.memory_stall_us, -1);
  EXPECT_FALSE(top.is_at_memory_limit) << "max is no limit";
}

TEST_F(Cgroup, OfVersionOneHasItsCoresInAHierarchyOfItsOwn) {
  write("cpu/jobs/a/cpu.stat", "nr_periods 9\nnr_throttled 6\nthrottled_time 1\n");
  write("unified/jobs/cpu.stat", "usage_usec 12\n");
  write("unified/jobs/memory.pressure", pressure("40"));

  const CgroupTotals totals = read_cgroup("9:name=systemd:/\n4:memory:/m\n1:cpuacct,cpu:/jobs/a\n0::/jobs\n", folder_);

  EXPECT_EQ(totals.throttled_periods, 6);
  EXPECT_EQ(totals.memory_stall_us, 40);
}

TEST_F(Cgroup, IsNoneWhereTheSystemHasNone) {
  for (const char* groups : {"", "nonsense", "0::", "1:cpu", ":::"}) {
    const CgroupTotals totals = read_cgroup(groups, folder_);

    EXPECT_EQ(totals.throttled_periods, 0) << groups;
    EXPECT_EQ(totals.memory_stall_us, -1) << groups;
  }
}

}  // namespace
}  // namespace hasten::flight
