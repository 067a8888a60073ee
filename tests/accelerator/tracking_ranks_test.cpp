// The front door's functions for trackers, with real ranks.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/samplers/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/tracking/journal/journal.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using TrackedRuns = hasten::testing::InFolder;

std::string journal_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

TEST_F(TrackedRuns, AreOneRunForAllRanksAndTheMainProcessLogs) {
  testing::run_ranks(2, [&](process::Process& process) {
    Accelerator accelerator(process, {.log_with = {"journal"}, .project = {.project_dir = folder_}});
    accelerator.init_trackers("p", {{"lr", 0.5}});
    const at::Tensor loss = at::full({}, 0.25);
    accelerator.log({{"loss", loss}, {"rank", accelerator.rank()}}, 3);
    accelerator.log_images({{"input", at::zeros({1, 4, 4})}}, 3);
    accelerator.logger("mine").warning("careful");
    EXPECT_THROW(accelerator.log({{"many", at::zeros({2})}}), UsageError);
    accelerator.end_training();
    EXPECT_THAT(testing::words_of<UsageError>([&] { accelerator.log({{"late", 1}}); }),
                HasSubstr("log behind end_training(), which has closed the trackers"));
  });

  std::vector<std::filesystem::path> runs;
  for (const auto& run : std::filesystem::directory_iterator(folder_ / "p")) runs.push_back(run.path());
  ASSERT_EQ(runs.size(), 1u);
  const std::string main = journal_text(runs[0] / "journal.jsonl"),
                    other = journal_text(runs[0] / "journal-rank1.jsonl");
  EXPECT_THAT(main, HasSubstr(R"("step":3,"values":{"loss":0.25,"rank":0}})"));
  EXPECT_THAT(main, HasSubstr(R"("images":{"input":["media/input-3-0-0.png"]})"));
  EXPECT_THAT(main, HasSubstr(R"("text":"careful")"));
  EXPECT_THAT(main, HasSubstr(R"("end":"finished")"));
  EXPECT_THAT(other, Not(HasSubstr(R"("op":"log")")));
  EXPECT_THAT(other, HasSubstr(R"("op":"finish")"));
}

TEST_F(TrackedRuns, AreRefusedWhereNoTrackerIsNamed) {
  testing::run_ranks(1, [&](process::Process& process) {
    Accelerator accelerator(process, {.project = {.project_dir = folder_}});
    EXPECT_THROW(accelerator.init_trackers("p"), UsageError);
    EXPECT_THROW(accelerator.log({{"x", 1}}), UsageError);
    EXPECT_THROW(Accelerator(process, {.log_with = {"tensorbord"}}), UsageError);
    accelerator.end_training();
  });
}

TEST_F(TrackedRuns, GoOnInTheirFolderWithTheStepOfTheCheckpoint) {
  const AcceleratorOptions options{.log_with = {"journal"}, .project = {.project_dir = folder_}};
  std::filesystem::path run;
  testing::run_ranks(2, [&](process::Process& process) {
    Accelerator accelerator(process, options);
    torch::nn::Linear net(2, 1);
    auto model = accelerator.prepare(net);
    accelerator.init_trackers("p");
    for (int i = 0; i < 3; ++i) accelerator.log({{"x", i}});
    accelerator.save_state(path("saved"));
    accelerator.log({{"x", "behind the checkpoint"}});
    if (accelerator.is_main_process()) run = accelerator.trackers().run_folder();
    accelerator.end_training();
  });
  testing::run_ranks(2, [&](process::Process& process) {
    Accelerator accelerator(process, options);
    torch::nn::Linear net(2, 1);
    auto model = accelerator.prepare(net);
    accelerator.load_state(path("saved"));
    accelerator.init_trackers("p");
    accelerator.log({{"x", "again"}});
    accelerator.end_training();
    EXPECT_EQ(accelerator.trackers().run_folder(), run);
  });

  const std::string main = journal_text(run / "journal.jsonl");
  EXPECT_THAT(main, HasSubstr("saves a checkpoint at step 0"));
  EXPECT_THAT(main, HasSubstr(R"("op":"resume")"));
  EXPECT_THAT(main, HasSubstr(R"("step":3,"values":{"x":"behind the checkpoint"})"));
  EXPECT_THAT(main, HasSubstr(R"("step":3,"values":{"x":"again"})"));
  EXPECT_THAT(journal_text(run / "journal-rank1.jsonl"), HasSubstr(R"("op":"resume")"));
}

TEST_F(TrackedRuns, ACheckpointWithoutTrackersIsLoadedByARunWithThemAndTheOtherWayRound) {
  testing::run_ranks(1, [&](process::Process& process) {
    torch::nn::Linear net(2, 1);
    Accelerator plain(process);
    auto model = plain.prepare(net);
    plain.save_state(path("plain"));
    Accelerator tracked(process, {.log_with = {"journal"}, .project = {.project_dir = folder_}});
    auto other = tracked.prepare(net);
    tracked.init_trackers("p");
    tracked.save_state(path("tracked"));

    EXPECT_NO_THROW(tracked.load_state(path("plain")));
    EXPECT_TRUE(plain.load_state(path("tracked")).unexpected.empty());
    tracked.end_training();
  });
}

// The metrics of a rank's journal that hold samples a second.
std::vector<core::Value> metrics_in(const std::filesystem::path& journal) {
  std::vector<core::Value> found;
  tracking::JournalReader reader(journal);
  while (const auto record = reader.next()) {
    if (record->op == "metrics" && record->body.at("values").contains("samples_per_s"))
      found.push_back(record->body.at("values"));
  }
  return found;
}

TEST_F(TrackedRuns, SamplesAndWaitingOfEachRankAreThoseOfItsLoader) {
  testing::run_ranks(2, [&](process::Process& process) {
    Accelerator accelerator(process, {.log_with = {"journal"},
                                      .tracking = {.metrics_interval_s = 0.05, .run_id = "run"},
                                      .project = {.project_dir = folder_}});
    torch::nn::Linear net(2, 1);
    auto [model, train] = accelerator.prepare(
        net, data::loader<torch::data::samplers::SequentialSampler>(data::TensorDataset(at::zeros({16, 2})), 4));
    accelerator.init_trackers("p");
    const std::filesystem::path journal =
        folder_ / "p/run" / (accelerator.rank() == 0 ? "journal.jsonl" : "journal-rank1.jsonl");

    for (int epoch = 0; epoch < 50; ++epoch) {
      for (auto& batch : train) accelerator.backward(model(batch).sum());
    }
    for (int tries = 0; tries < 1000 && metrics_in(journal).empty(); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));

    const auto metrics = metrics_in(journal);
    EXPECT_FALSE(metrics.empty());
    for (const auto& values : metrics) {
      EXPECT_NEAR(values.at("samples_per_s").as_double() / values.at("steps_per_s").as_double(), 4, 1e-9);
      EXPECT_GT(values.at("data_wait_ms").as_double(), 0);
    }
    accelerator.wait_for_everyone();
    accelerator.end_training();
  });
}

}  // namespace
}  // namespace hasten
