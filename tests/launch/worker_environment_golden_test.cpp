// torchrun's own workers on one machine (golden topic launch_env, families real/torchrun_*) against ours.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "hasten/core/text.h"
#include "hasten/launch/worker_environment.h"

namespace hasten::launcher {
namespace {

using nlohmann::json;
using Variables = std::map<std::string, std::string>;

json golden_cases() {
  const std::string folder =
      Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_SOURCE_DIR "/tests/golden");
  std::ifstream file(folder + "/launch_env.json");
  return json::parse(file)["cases"];
}

// The value after `option` in torchrun's command line.
std::string option(const json& command, const std::string& name, const std::string& fallback) {
  for (size_t i = 0; i + 1 < command.size(); ++i) {
    if (command[i] == name) return command[i + 1];
  }
  return fallback;
}

// What hasten sets for the workers of torchrun's command, ports and paths replaced as in the golden file.
Variables our_variables(const json& command, int rank) {
  const bool standalone = std::find(command.begin(), command.end(), "--standalone") != command.end();
  const int num_workers = std::stoi(option(command, "--nproc_per_node", "1"));
  const RunSettings settings{.master_addr = standalone ? "localhost" : "127.0.0.1",
                             .run_id = standalone ? "<uuid>" : option(command, "--rdzv_id", "none"),
                             .role = option(command, "--role", "default")};
  const WorkerPlace place{
      .rank = rank, .local_rank = rank, .world_size = num_workers, .local_world_size = num_workers};
  Variables variables = worker_environment(Environment::of({}), settings, place, "<path>").variables();
  variables["MASTER_PORT"] = standalone ? "<other port>" : "<port>";
  return variables;
}

TEST(WorkerEnvironmentGolden, EqualsTorchrunsOnOneMachineButForTheAgentStore) {
  int num_cases = 0;

  for (const json& one : golden_cases()) {
    const json& commands = one["input"].value("commands", json::array());
    if (commands.size() != 1 || commands[0][0] != "torchrun") continue;
    ++num_cases;
    const json& workers = one["expected"]["workers"];
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      Variables expected = workers[rank]["env"];
      expected["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // no agent serves a store; docs/launch.md
      EXPECT_EQ(our_variables(commands[0], static_cast<int>(rank)), expected)
          << one["case"] << " rank " << rank;
    }
  }

  std::cout << "golden launch_env: " << num_cases << " cases of torchrun on one machine\n";
  EXPECT_GE(num_cases, 5);
}

}  // namespace
}  // namespace hasten::launcher
