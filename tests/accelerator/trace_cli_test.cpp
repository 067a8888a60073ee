// hasten trace of ranks that train: one file in which each rank is apart, with its steps, flows and collectives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "cli/command.h"
#include "hasten/accelerator.h"
#include "hasten/core/file.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/processes.h"

namespace hasten {
namespace {

using core::Value;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Until it is killed.
HASTEN_PROCESS_CASE(traced_loop) {
  const Accelerator accelerator(AcceleratorOptions{.cpu = true});
  testing::Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto loader = accelerator.data_loader(data::TensorDataset(torch::ones({64, 8})), 4);
  for (int pass = 0; pass < 100000; ++pass) {
    for (const auto& batch : loader) {
      optimizer.zero_grad();
      accelerator.backward(model(batch).square().mean());
      optimizer.step();
    }
    if (pass == 0) std::printf("ready %d\n", getpid()), std::fflush(stdout);
  }
  return 0;
}

/// The events of each rank, by the number of its process.
std::map<std::string, std::vector<const Value*>> by_process(const Value& trace) {
  std::map<std::string, std::vector<const Value*>> events;
  for (const Value& event : trace.at("traceEvents").as_list()) events[event.at("pid").to_json()].push_back(&event);
  return events;
}

std::filesystem::path own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::string hasten_program() {
  return (own_program().parent_path().parent_path() / "bin/hasten").string();
}

/// What `hasten WORDS` prints beside the run.
std::string output_of(const std::string& words) {
  FILE* const pipe = popen(text(hasten_program(), ' ', words, " 2>&1").c_str(), "r");
  std::string output;
  for (int letter = 0; (letter = fgetc(pipe)) != EOF;) output += static_cast<char>(letter);
  EXPECT_EQ(pclose(pipe), 0) << output;
  return output;
}

class RealTrace : public testing::InFolder {
 protected:
  /// What the command writes about the run of this process.
  Value trace_of(const std::string& pid) const {
    const std::string file = path("trace.json");
    output_of(text("trace ", pid, " --steps 3 -o ", file));
    return Value::parse_json(core::read_file(file).value_or("{}"), file);
  }
};

class RealTraceOfRanks : public RealTrace, public ::testing::WithParamInterface<int> {};

TEST_P(RealTraceOfRanks, HoldsEachRankApart) {
  const int world_size = GetParam();
  testing::Processes processes(world_size, "traced_loop", {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(processes.wait_for_output(0, "ready"));

  const Value trace = trace_of(text(processes.pid(0)));

  std::set<std::string> names, flows_of_others;
  for (const auto& [process, events] : by_process(trace)) {
    if (process.front() == '"') continue;  // Kineto's own
    std::vector<std::string> steps;
    std::map<std::string, std::string> flows;
    bool has_collective = false;
    for (const Value* event : events) {
      const std::string name = event->at("name").as_string(), kind = event->at("ph").as_string();
      if (name == "process_name") names.insert(event->at("args").at("name").as_string().substr(0, 7));
      if (name.starts_with("ProfilerStep#")) steps.push_back(name);
      if (kind == "s" || kind == "f") flows[event->at("id").to_json()] += kind;
      has_collective = has_collective || name.starts_with("all_reduce(mean) of float32 [");
    }
    EXPECT_THAT(steps, ElementsAre("ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3")) << process;
    EXPECT_TRUE(has_collective) << process;
    EXPECT_FALSE(flows.empty());
    for (const auto& [id, ends] : flows) {
      EXPECT_THAT(ends, ::testing::AnyOf("sf", "fs")) << "flow " << id << " of " << process;
      EXPECT_TRUE(flows_of_others.insert(id).second) << "flow " << id << " is of two ranks";
    }
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(world_size));
  EXPECT_EQ(*names.begin(), "rank 0:");
}

INSTANTIATE_TEST_SUITE_P(Processes, RealTraceOfRanks, ::testing::Values(2, 4));

TEST_F(RealTrace, AProgramOfOneProcessUnderHastenLaunchIsShownByAllCommands) {
  const test::Command run({hasten_program(), "launch", "-n", "1", "--cpu", own_program().string()},
                          {{"HASTEN_TEST_CASE", "traced_loop"}});
  const std::string ready = run.read_line();
  ASSERT_THAT(ready, ::testing::StartsWith("ready "));
  const std::string pid = ready.substr(6);

  EXPECT_THAT(output_of("ps"), ContainsRegex(text('\n', pid, " +[^ ]+ +1 +[1-9][0-9]* +[^ ]+ +running")));
  EXPECT_THAT(output_of("stacks " + pid), ContainsRegex(text("rank 0 .pid ", pid, ".: .*\n  main: ")));
  EXPECT_THAT(output_of("watch --once " + pid), ContainsRegex("\n0 +[1-9]"));
  std::vector<std::string> steps;
  const Value trace = trace_of(pid);
  for (const Value& event : trace.at("traceEvents").as_list()) {
    if (event.at("name").as_string().starts_with("ProfilerStep#")) steps.push_back(event.at("name").as_string());
  }
  EXPECT_THAT(steps, ElementsAre("ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"));
}

}  // namespace
}  // namespace hasten
