#include "hasten/launch/base/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// /sys and /proc of another machine.
class Tree {
 public:
  Tree() {
    std::string name = ::testing::TempDir() + "hasten_machine_XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~Tree() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& line) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << line << "\n";
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

TEST(Machine, ReadsTheKernelsLists) {
  EXPECT_THAT(numbers_in("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(numbers_in("7"), ElementsAre(7));
  EXPECT_TRUE(numbers_in("").empty());
}

TEST(Machine, KnowsTheNodesOfTheVisibleGpus) {
  const Tree tree;
  for (const char* place : {"0000:81:00.0", "0000:01:00.0", "0000:02:00.0"}) {
    tree.write(std::string("/proc/driver/nvidia/gpus/") + place + "/information", "Model: X");
  }
  tree.write("/sys/bus/pci/devices/0000:01:00.0/numa_node", "0");
  tree.write("/sys/bus/pci/devices/0000:02:00.0/numa_node", "1");

  const auto gpus = [&](const std::map<std::string, std::string>& variables) {
    return this_machine(Environment::of(variables), tree.root()).gpu_nodes;
  };

  EXPECT_THAT(gpus({}), ElementsAre(0, 1, -1));
  EXPECT_THAT(gpus({{"CUDA_VISIBLE_DEVICES", "1,0"}}), ElementsAre(1, 0));
  EXPECT_THAT(gpus({{"CUDA_VISIBLE_DEVICES", "1,9,0"}}), ElementsAre(1));
  EXPECT_THAT(gpus({{"CUDA_VISIBLE_DEVICES", "1,99999999999999999999999"}}), ElementsAre(1));
  EXPECT_THAT(gpus({{"CUDA_VISIBLE_DEVICES", ""}}), ElementsAre());
  EXPECT_THAT(gpus({{"CUDA_VISIBLE_DEVICES", "GPU-7f"}}), ElementsAre(-1));
}

TEST(Machine, GpusOfOtherMakersAndPlacesAreCounted) {
  const auto gpus = [](const Tree& tree) {
    return this_machine(Environment::of({{"HASTEN_MACHINE_ROOT", tree.root()}})).num_gpus();
  };
  const Tree amd, sandbox, windows, bare;
  amd.write("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0");
  amd.write("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4711");
  sandbox.write("/dev/nvidia0", "");
  sandbox.write("/dev/nvidia1", "");
  sandbox.write("/dev/nvidiactl", "");
  windows.write("/dev/dxg", "");

  EXPECT_EQ(gpus(amd), 1);
  EXPECT_EQ(gpus(sandbox), 2);
  EXPECT_EQ(gpus(windows), 1);
  EXPECT_EQ(gpus(bare), 0);
}

TEST(Machine, TpusAreToldFromGooglesNetworkCards) {
  const auto accelerators = [](const Tree& tree) { return this_machine(Environment::of({}), tree.root()).accelerators; };
  const Tree card, tpu, files;
  card.write("/sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0");
  card.write("/sys/bus/pci/devices/0000:00:04.0/device", "0x0042");
  tpu.write("/sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0");
  tpu.write("/sys/bus/pci/devices/0000:00:04.0/device", "0x0063");
  files.write("/dev/accel0", "");
  files.write("/dev/davinci_manager", "");

  EXPECT_TRUE(accelerators(card).empty());
  EXPECT_THAT(accelerators(tpu), ElementsAre("TPU"));
  EXPECT_THAT(accelerators(files), ElementsAre("TPU"));
}

TEST(Machine, AQuotaOfTheControlGroupBoundsCpusAndCores) {
  const Tree tree;
  tree.write("/proc/self/cgroup", "0::/job");
  tree.write("/sys/fs/cgroup/job/cpu.max", "100000 100000");

  const Machine machine = this_machine(Environment::of({}), tree.root());

  EXPECT_EQ(machine.cpu_quota, 1);
  EXPECT_EQ(machine.num_cpus(), 1);
  EXPECT_EQ(machine.num_physical_cores(), 1);
}

TEST(Machine, CpusAreThoseThisProcessMayUseWithTheirPlace) {
  const Machine here = this_machine(Environment::of({}));
  ASSERT_FALSE(here.cpus.empty());
  const int first = here.cpus.front().number;
  const Tree tree;
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(first);
  tree.write(folder + "/topology/physical_package_id", "4");
  tree.write("/sys/devices/system/node/online", "0,3");
  tree.write("/sys/devices/system/node/node3/cpulist", std::to_string(first));

  const Machine machine = this_machine(Environment::of({}), tree.root());

  EXPECT_EQ(machine.cpus.size(), here.cpus.size());
  EXPECT_EQ(machine.cpus.front().socket, 4);
  EXPECT_EQ(machine.cpus.front().node, 3);
  EXPECT_GE(here.num_physical_cores(), 1);
}

}  // namespace
}  // namespace hasten::launcher
