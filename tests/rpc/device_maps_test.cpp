// Device maps: which are refused, and where a tensor goes.
#include "rpc/device_maps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

c10::Device gpu(int index) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

TEST(DeviceMaps, AllFaultsOfAllWorkersStandInOneMessage) {
  const std::vector<WorkerDevices> all = {
      {.name = "w0", .num_cuda = 2, .maps = {{"w1", {{gpu(0), gpu(0)}, {gpu(1), gpu(0)}}}, {"w2", {}}}},
      {.name = "w1",
       .num_cuda = 1,
       .maps = {{"w0", {{gpu(0), gpu(5)}, {c10::Device(c10::kCPU), gpu(0)}}}},
       .devices = {gpu(3)}}};

  const std::string problems = device_problems(all);

  EXPECT_THAT(problems, HasSubstr("cuda:0 and cuda:1 both go to cuda:0"));
  EXPECT_THAT(problems, HasSubstr("'w0' maps devices to 'w2', which is no worker"));
  EXPECT_THAT(problems, HasSubstr("cuda:5 does not exist at 'w0', which has 2 CUDA devices"));
  EXPECT_THAT(problems, HasSubstr("cpu of 'w1' is no CUDA device"));
  EXPECT_THAT(problems, HasSubstr("devices of 'w1' has cuda:3"));
  EXPECT_THAT(problems, HasSubstr("cuda:0 is not among the RpcOptions::devices of 'w1'"));
}

TEST(DeviceMaps, AMapThatFitsIsNoProblem) {
  const std::vector<WorkerDevices> all = {{.name = "w0",
                                           .num_cuda = 2,
                                           .maps = {{"w1", {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}}}},
                                           .devices = {gpu(0), gpu(1)}},
                                          {.name = "w1", .num_cuda = 2}};

  EXPECT_EQ(device_problems(all), "");
}

TEST(DeviceMaps, RepliesTakeTheInverseOfTheCallersMap) {
  const WorkerDevices caller{.name = "w0", .num_cuda = 2, .maps = {{"w1", {{gpu(0), gpu(1)}}}}};
  const WorkerDevices callee{.name = "w1", .num_cuda = 2, .maps = {{"w0", {{gpu(1), gpu(1)}}}}};

  EXPECT_EQ(mapped_device(caller, callee, gpu(0), false), gpu(1));
  EXPECT_EQ(mapped_device(callee, caller, gpu(1), true), gpu(0)) << "the caller's map counts in a reply";
  EXPECT_EQ(mapped_device(callee, caller, gpu(1), false), gpu(1)) << "its own map counts in a call";
  EXPECT_EQ(mapped_device(caller, callee, gpu(1), false), gpu(1)) << "the other's map, backwards";
  EXPECT_EQ(mapped_device(callee, caller, gpu(0), true), std::nullopt);
}

TEST(DeviceMaps, MayNameAWorkerByItsSecondName) {
  const WorkerDevices caller{.name = "ps0", .num_cuda = 2, .maps = {{"worker1", {{gpu(0), gpu(1)}}}}};
  const WorkerDevices callee{.name = "trainer0", .second_name = "worker1", .num_cuda = 2};

  EXPECT_EQ(device_problems({caller, callee}), "");
  EXPECT_EQ(mapped_device(caller, callee, gpu(0), false), gpu(1));
}

TEST(DeviceMaps, TravelAsLines) {
  const WorkerDevices own{.name = "w0",
                          .num_cuda = 2,
                          .maps = {{"a:b", {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}}}},
                          .devices = {gpu(0), gpu(1)}};
  WorkerDevices read;

  const std::string lines = device_lines(own);
  for (size_t begin = 0; begin < lines.size(); begin = lines.find('\n', begin) + 1)
    EXPECT_TRUE(take_device_line(lines.substr(begin, lines.find('\n', begin) - begin), read));

  EXPECT_EQ(read.num_cuda, 2);
  EXPECT_EQ(read.devices, own.devices);
  EXPECT_EQ(read.maps, own.maps);
  EXPECT_FALSE(take_device_line("f(int)\tvoid(i32)\t0", read));
}

}  // namespace
}  // namespace hasten::rpc
