#include "hasten/launch/plan/missing_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/launch/options/command_line.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> missing(const std::vector<std::string>& words, const Machine& machine,
                                 const std::string& type = "",
                                 const std::map<std::string, std::string>& variables = {}) {
  const core::Value::Map values = {{"distributed_type", core::Value{type.empty() ? "NO" : type}},
                                   {"num_processes", core::Value{int64_t{2}}}};
  const Config file{.path = "/home/me/c.yaml", .given = values, .values = values};
  const Environment environment = Environment::of(variables);
  const LaunchSettings settings(read_command_line(launch_options(), words), type.empty() ? nullptr : &file,
                                environment);
  return missing_devices(settings, machine, environment);
}

const Machine kBare{.cpus = {{.number = 0}, {.number = 1, .core = 1}}};
const Machine kWithGpus{.cpus = {{}}, .gpu_nodes = {0, 0}};

TEST(MissingDevices, AreNamedWithTheSettingThatAsksAndWhatThereIs) {
  EXPECT_THAT(
      missing({"--tpu"}, kBare),
      ElementsAre("--tpu asks for TPUs, and this machine has none: it has 2 CPUs, no GPU. Give --cpu to train on the "
                  "CPU"));
  EXPECT_THAT(missing({"--multi_gpu", "-n", "2"}, kBare, "", {{"CUDA_VISIBLE_DEVICES", ""}}),
              ElementsAre("--multi_gpu asks for GPUs, and this machine has none: it has 2 CPUs, no GPU "
                          "(CUDA_VISIBLE_DEVICES=''). Give --cpu to train on the CPU"));
  EXPECT_THAT(
      missing({}, kWithGpus, "XLA"),
      ElementsAre("distributed_type XLA (c.yaml) asks for TPUs, and this machine has none: it has 1 CPU, 2 GPUs. "
                  "Give --cpu to train on the CPU"));
  EXPECT_THAT(
      missing({}, kWithGpus, "MULTI_NPU"),
      ElementsAre("distributed_type MULTI_NPU (c.yaml) asks for NPU devices, and this machine has none: it has 1 "
                  "CPU, 2 GPUs. Give --cpu to train on the CPU"));
}

TEST(MissingDevices, GpusThatAreNamedByTheirNumbersAreAskedForToo) {
  EXPECT_THAT(missing({"--gpu_ids", "0,1", "-n", "2"}, kBare),
              ElementsAre("--gpu_ids asks for GPU 0,1, and this machine has none: it has 2 CPUs, no GPU. Give --cpu to "
                          "train on the CPU"));
  EXPECT_THAT(missing({"--gpu_ids", "0,1", "-n", "2"}, kWithGpus), IsEmpty());
  EXPECT_THAT(missing({"--gpu_ids", "all", "-n", "2"}, kBare), IsEmpty());
  EXPECT_THAT(missing({"--gpu_ids", "0", "--cpu"}, kBare), IsEmpty());
  EXPECT_THAT(missing({"--gpu_ids", "0,1"}, kBare, "MULTI_CPU"), IsEmpty());
}

TEST(MissingDevices, NothingIsMissingWhereTheyAreOrTheRunStaysOnTheCpu) {
  EXPECT_THAT(missing({"--multi_gpu", "-n", "2"}, kWithGpus), IsEmpty());
  EXPECT_THAT(missing({}, kWithGpus, "MULTI_GPU"), IsEmpty());
  EXPECT_THAT(missing({"--cpu"}, kBare, "MULTI_GPU"), IsEmpty());
  EXPECT_THAT(missing({}, kBare, "MULTI_CPU"), IsEmpty());
  EXPECT_THAT(missing({"-n", "2"}, kBare), IsEmpty());
  EXPECT_THAT(missing({"--tpu"}, {.accelerators = {"TPU"}}), IsEmpty());
}

}  // namespace
}  // namespace hasten::launcher
