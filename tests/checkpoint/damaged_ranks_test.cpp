// Damaged checkpoints: each piece that a load reads is compared with its hash, and resume() takes the one before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/training_run.h"
#include "hasten/accelerator.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/files/folders/manifest.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
namespace fs = std::filesystem;

class DamagedCheckpoints : public testing::InFolder {};

// Changes one byte of a tensor's values: sizes and headers are as before.
void damage(const fs::path& folder, const std::string& tensor) {
  const auto manifest = files::read_manifest(folder.string());
  const auto& piece = manifest.find(tensor)->pieces[0];
  std::fstream file(folder / manifest.files[piece.file].name, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(piece.position + 5));
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(static_cast<std::streamoff>(piece.position + 5));
  file.put(byte);
}

void save_two_checkpoints(const fs::path& folder) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2}, folder);
    for (int i = 0; i < 2; ++i) {
      run.train(2);
      run.accelerator.save_state().wait();
    }
    run.accelerator.end_training();
  });
}

TEST_F(DamagedCheckpoints, ResumeTakesTheNewestCompleteOneOnAllRanks) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2}, folder_);
    EXPECT_FALSE(run.accelerator.resume().has_value());
    process.wait_for_everyone();
  });
  save_two_checkpoints(folder_);
  // The newest one is cut short.
  const auto newest = folder_ / "checkpoints" / "checkpoint_1";
  for (const auto& entry : fs::directory_iterator(newest)) {
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
  }

  run_ranks(3, [&](auto& process) {
    TrainingRun run(process, {3}, folder_);
    const auto resumed = run.accelerator.resume();
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(fs::path(resumed->path).filename(), "checkpoint_0");
    EXPECT_EQ(resumed->step, 2);
    EXPECT_FALSE(run.accelerator.resume({.step = 2})->path.empty());
    EXPECT_THROW(run.accelerator.resume({.step = 4}), UsageError);
    process.wait_for_everyone();
  });
}

TEST_F(DamagedCheckpoints, ADamagedRandomStreamIsNamedOnAllRanks) {
  save_two_checkpoints(folder_);
  const auto newest = folder_ / "checkpoints" / "checkpoint_1";
  damage(newest, "random.1.cpu");

  run_ranks(3, [&](auto& process) {
    TrainingRun run(process, {3}, folder_);
    EXPECT_THAT(testing::words_of<DataError>([&] { run.accelerator.load_state(newest.string()); }),
                HasSubstr("'random.1.cpu'"));
    EXPECT_NO_THROW(run.accelerator.load_state(newest.string(), {.random = false}));
    const auto resumed = run.accelerator.resume();
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(fs::path(resumed->path).filename(), "checkpoint_0");
    process.wait_for_everyone();
  });
}

TEST_F(DamagedCheckpoints, DamageFoundWhileLoadingTakesTheCheckpointBefore) {
  save_two_checkpoints(folder_);
  const auto newest = folder_ / "checkpoints" / "checkpoint_1";
  damage(newest, "second.weight");

  run_ranks(3, [&](auto& process) {
    TrainingRun run(process, {3}, folder_);
    EXPECT_THAT(testing::words_of<DataError>([&] { run.accelerator.load_state(newest.string()); }),
                HasSubstr("'second.weight'"));
    EXPECT_NO_THROW(run.accelerator.load_state(newest.string(), {.verify = false}));
    const auto resumed = run.accelerator.resume();
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(fs::path(resumed->path).filename(), "checkpoint_0");
    process.wait_for_everyone();
  });
}

TEST_F(DamagedCheckpoints, ACheckpointWithoutItsManifestIsDamaged) {
  save_two_checkpoints(folder_);
  const auto newest = folder_ / "checkpoints" / "checkpoint_1";
  fs::remove(newest / "manifest.json");
  TrainingRun run(process::Process(process::RankInfo{}, comm::Group()), {1}, folder_);
  EXPECT_THAT(testing::words_of<DataError>([&] { run.accelerator.load_state(newest.string()); }),
              HasSubstr("has no manifest.json"));
  EXPECT_EQ(fs::path(run.accelerator.resume()->path).filename(), "checkpoint_0");
}

TEST_F(DamagedCheckpoints, AnOpenWindowsGradientIsNamed) {
  const auto folder = path("window");
  run_ranks(1, [&](auto& process) {
    AcceleratorOptions options;
    options.gradient_accumulation_steps = 4;
    Accelerator accelerator(process, options);
    testing::Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(testing::here(testing::problem_for("mlp", 9).inputs)).square().mean());
    accelerator.save_state(folder);
    damage(folder, "gradient.0.second.weight");

    EXPECT_THAT(testing::words_of<DataError>([&] { accelerator.load_state(folder); }),
                HasSubstr("'gradient.0.second.weight'"));
  });
}

}  // namespace
}  // namespace hasten
