// Two network namespaces as hosts, with two processes each. Needs root and `ip` (iproute2).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "hasten/core/text.h"
#include "hasten/process/process.h"
#include "support/processes.h"

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(two_level_between_namespaces) {
  const process::Process process({.timeout = std::chrono::seconds(30)});
  at::Tensor tensor = torch::full({300000}, process.rank() + 1.0);
  process.group().all_reduce_(tensor);
  process.group().barrier();
  std::cout << process.group().backend_name() << " sum " << tensor[299999].item<double>() << std::endl;
  return 0;
}

void must(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

// Two namespaces joined by a cable; they go with this object.
class TwoHosts {
 public:
  TwoHosts() {
    for (const char* host : {"a", "b"}) must("ip netns add " + name(host));
    must("ip link add cable netns " + name("a") + " type veth peer name cable netns " + name("b"));
    for (const auto& [host, address] : {std::pair{"a", "10.77.0.1/24"}, std::pair{"b", "10.77.0.2/24"}}) {
      must("ip -n " + name(host) + " addr add " + address + " dev cable");
      must("ip -n " + name(host) + " link set cable up");
      must("ip -n " + name(host) + " link set lo up");
    }
  }
  ~TwoHosts() {
    for (const char* host : {"a", "b"}) std::system(("ip netns del " + name(host)).c_str());
  }

  static std::string name(const std::string& host) { return text("hasten-", getpid(), '-', host); }
};

TEST(HierarchicalSlow, NetworkNamespacesAreHosts) {
  const TwoHosts hosts;
  ASSERT_FALSE(HasFailure());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<FILE*> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string command =
        text("ip netns exec ", TwoHosts::name(rank < 2 ? "a" : "b"), " env RANK=", rank, " LOCAL_RANK=", rank % 2,
             " WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 GLOO_SOCKET_IFNAME=cable "
             "HASTEN_TEST_CASE=two_level_between_namespaces ",
             program, " 2>&1");
    ranks.push_back(popen(command.c_str(), "r"));
  }

  for (FILE* rank : ranks) {
    std::string output;
    for (char buffer[256]; std::fgets(buffer, sizeof(buffer), rank) != nullptr;) output += buffer;
    EXPECT_EQ(pclose(rank), 0) << output;
    EXPECT_THAT(output, HasSubstr("shm+gloo sum 10"));
  }
}

}  // namespace
}  // namespace hasten::comm
