// Python programs of the peers under `hasten launch`, unchanged: Accelerate's own test scripts from the
// installed package, and a torchrun program, which must compute what it computes under torchrun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "cli/launch_folder.h"
#include "hasten/core/env.h"
#include "support/python.h"

namespace hasten {
namespace {

using test::CommandResult;
using ::testing::HasSubstr;

class LaunchPeers : public test::LaunchFolder {
 protected:
  void SetUp() override {
    const auto why = testing::why_without_python("HASTEN_PEERS_PYTHON", {"torch", "numpy", "accelerate"});
    if (!why.empty()) GTEST_SKIP() << why;
    python_ = *Environment::current().text("HASTEN_PEERS_PYTHON");
  }

  // On one thread each, as losses to the last bit need it, over the loopback device.
  CommandResult run(const std::vector<std::string>& words) const {
    auto variables = environment();
    variables.insert({{"PYTHON_EXEC", python_}, {"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}});
    return test::run_command(words, variables);
  }

  CommandResult launch_script_of_accelerate(const std::string& name) const {
    const CommandResult package =
        test::run_command({python_, "-c",
                           "import importlib.util as u; "
                           "print(u.find_spec('accelerate').submodule_search_locations[0], end='')"});
    EXPECT_EQ(package.exit_code, 0) << package.err;
    return run(words({"--cpu", "-n", "2", package.out + "/test_utils/scripts/" + name}));
  }

  // The losses of all ranks in an order of their own; the ranks' lines come as they like.
  static std::vector<std::string> losses(const CommandResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> lines;
    std::istringstream stream(result.out);
    for (std::string line; std::getline(stream, line);) {
      if (line.starts_with("rank ")) lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  void expect_the_losses_of_torchrun(int num_processes) const {
    const std::string count = std::to_string(num_processes);
    const std::string program = HASTEN_SOURCE_DIR "/tests/cli/peers/ddp_train.py";

    const auto ours = losses(run(words({"-n", count, program})));
    const auto theirs =
        losses(run({python_, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, program}));

    EXPECT_EQ(ours.size(), static_cast<size_t>(10 * num_processes));
    EXPECT_THAT(ours, ::testing::Each(HasSubstr("/" + count + " step ")));
    EXPECT_EQ(ours, theirs);
  }

 private:
  std::string python_;
};

TEST_F(LaunchPeers, AcceleratesTestScriptGetsToItsEndOnTwoProcesses) {
  const CommandResult result = launch_script_of_accelerate("test_script.py");

  EXPECT_THAT(result.out, HasSubstr("Num processes: 2\n"));
  EXPECT_THAT(result.out, HasSubstr("**Breakpoint trigger test**")) << result.err;
  // After its last line it sometimes aborts in Gloo's teardown, under torchrun as well.
  EXPECT_THAT(result.exit_code, ::testing::AnyOf(0, 128 + SIGABRT)) << result.err;
}

TEST_F(LaunchPeers, AcceleratesTestSyncEndsWell) {
  const CommandResult result = launch_script_of_accelerate("test_sync.py");

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("**Test Distributed `no_sync` context manager**\n"));
}

TEST_F(LaunchPeers, ATorchrunProgramTrainsToTheSameLossesOnTwoProcesses) {
  expect_the_losses_of_torchrun(2);
}

TEST_F(LaunchPeers, ATorchrunProgramTrainsToTheSameLossesOnFourProcesses) {
  expect_the_losses_of_torchrun(4);
}

}  // namespace
}  // namespace hasten
