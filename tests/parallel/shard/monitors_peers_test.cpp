// The monitors wandb and comet of a DeepSpeed configuration, with the clients themselves, offline. They run with
// HASTEN_TRACKER_PYTHON; without it the tests are skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/tracking/board/commands.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/python.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Prints all bytes below a folder; those of archives as they were.
constexpr const char* kReadAll = R"(
import pathlib, sys, zipfile
for path in pathlib.Path(sys.argv[1]).rglob('*'):
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        for name in archive.namelist():
            sys.stdout.buffer.write(archive.read(name))
    elif path.is_file():
        sys.stdout.buffer.write(path.read_bytes())
)";

class MonitorPeers : public testing::InFolder {
 protected:
  void SetUp() override {
    const auto why = testing::why_without_python("HASTEN_TRACKER_PYTHON", {"wandb", "comet_ml"});
    if (!why.empty()) GTEST_SKIP() << why;
    python_ = *Environment::current().text("HASTEN_TRACKER_PYTHON");
    std::filesystem::create_directories(client());
    for (const auto& [name, value] : std::map<std::string, std::string>{{"WANDB_MODE", "offline"},
                                                                        {"WANDB_DIR", client()},
                                                                        {"WANDB_SILENT", "true"},
                                                                        {"COMET_OFFLINE_DIRECTORY", client()},
                                                                        {"HOME", client()}}) {
      setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
  }

  std::string client() const { return path("client"); }

  // What the client has written after three steps of 8 samples.
  std::string written_with(const std::string& section, core::Value monitor) const {
    auto config = core::Value::parse_json(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
    monitor["enabled"] = true;
    config[section] = std::move(monitor);
    testing::run_ranks(2, [&](auto& process) {
      AcceleratorOptions options{.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}};
      options.project.logging_dir = path("logs");
      const Accelerator accelerator(process, options);
      testing::Mlp net;
      testing::initialise(*net, 5);
      torch::optim::SGD sgd(net->parameters(), 0.25);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        accelerator.backward(model(testing::problem_for("mlp", 1).inputs).square().mean());
        optimizer.step();
      }
      accelerator.end_training();
    });
    int num_runs = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path("logs") + "/of_monitors")) {
      if (entry.path().filename() != "journal.jsonl") continue;
      ++num_runs;
      const auto status = tracking::read_status(entry.path());
      EXPECT_EQ(status.sinks.size(), 1U);
      for (const auto& sink : status.sinks) EXPECT_TRUE(sink.state.done) << sink.state.error;
    }
    EXPECT_EQ(num_runs, 1);
    FILE* const pipe = popen((python_ + " " + write("read.py", kReadAll) + " " + client()).c_str(), "r");
    std::string all;
    char buffer[4096];
    while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) all.append(buffer, count);
    EXPECT_EQ(pclose(pipe), 0);
    return all;
  }

 private:
  std::string python_;
};

TEST_F(MonitorPeers, WandbGetsTheLossesAndTheRate) {
  const auto written =
      written_with("wandb", core::Value::map({{"project", "of_monitors"}, {"group", "group_of_configuration"}}));

  EXPECT_THAT(written, AllOf(HasSubstr("Train/Samples/train_loss"), HasSubstr("Train/Samples/lr"),
                             HasSubstr("group_of_configuration"), HasSubstr("of_monitors")));
}

TEST_F(MonitorPeers, CometGetsTheLossesAndTheRate) {
  const auto written = written_with(
      "comet",
      core::Value::map({{"project", "of_monitors"}, {"workspace", "space_of_configuration"}, {"online", false}}));

  EXPECT_THAT(written, AllOf(HasSubstr("Train/Samples/train_loss"), HasSubstr("Train/Samples/lr"),
                             HasSubstr("space_of_configuration"), HasSubstr("of_monitors")));
}

}  // namespace
}  // namespace hasten
