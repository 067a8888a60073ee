// A run that is killed at any point has its last complete checkpoint: real processes, kill -9 of a rank while they save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

#include "hasten/accelerator.h"
#include "hasten/files/manifest.h"
#include "hasten/files/retention.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/processes.h"

namespace hasten {
namespace {

// Trains and saves for ever, in the background, with two checkpoints kept; says which are complete.
HASTEN_PROCESS_CASE(saves_until_it_is_killed) {
  torch::set_num_threads(1);
  AcceleratorOptions options{.tune_allocator = false};
  options.project = {.project_dir = *Environment::current().text("TEST_FOLDER"), .automatic_checkpoint_naming = true,
                     .total_limit = 2};
  Accelerator accelerator(options);
  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 64));
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto resumed = accelerator.resume();
  // Every parameter was made equal to the step, so that a mixture of two checkpoints shows.
  if (resumed) {
    for (const auto& parameter : net->parameters()) {
      if (!parameter.eq(static_cast<double>(resumed->step)).all().item<bool>()) {
        std::cout << "a mixture at step " << resumed->step << std::endl;
        return 1;
      }
    }
  }
  std::cout << "resumed " << (resumed ? resumed->step : -1) << std::endl;
  for (int64_t step = resumed ? resumed->step + 1 : 1;; ++step) {
    accelerator.backward(model(torch::ones({4, 64})).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.fill_(static_cast<double>(step));
    }
    const auto save = accelerator.save_state();
    if (step % 3 == 0) {
      save.wait();
      if (accelerator.is_main_process()) std::cout << "complete " << step << std::endl;
    }
  }
}

int64_t last_number(const std::string& output, const std::string& before) {
  const auto at = output.rfind(before);
  return at == std::string::npos ? -1 : std::stoll(output.substr(at + before.size()));
}

class CheckpointCrash : public testing::InFolder {};

TEST_F(CheckpointCrash, KilledRanksLoseNoCheckpoint) {
  const int64_t kills = 6 * Environment::current().integer("HASTEN_TEST_SCALE", 1).value_or(1);
  const auto seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  int64_t durable = -1;
  for (int64_t kill = 0; kill < kills; ++kill) {
    testing::Processes run(2, "saves_until_it_is_killed", {{"TEST_FOLDER", folder_}, {"OMP_NUM_THREADS", "1"}});
    ASSERT_TRUE(run.wait_for_output(0, "resumed")) << "kill " << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    const int first = static_cast<int>(random() % 2);
    run.signal(first, SIGKILL);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    run.signal(1 - first, SIGKILL);
    const auto results = run.wait();

    EXPECT_THAT(results[0].output, ::testing::Not(::testing::HasSubstr("mixture")));
    const int64_t resumed = last_number(results[0].output, "resumed ");
    EXPECT_GE(resumed, durable) << "a complete checkpoint was lost";
    durable = std::max({durable, resumed, last_number(results[0].output, "complete ")});
    int complete = 0;
    for (const auto& found : files::find_checkpoints((folder_ / "checkpoints").string())) {
      EXPECT_EQ(found.problem, "") << found.path;
      EXPECT_TRUE(files::verify_folder(found.path).errors.empty()) << found.path;
      ++complete;
    }
    EXPECT_TRUE(durable < 0 || complete >= 1);
  }
}

// A program that ends while a save is under way waits for it.
HASTEN_PROCESS_CASE(ends_while_it_saves) {
  AcceleratorOptions options{.tune_allocator = false};
  options.project = {.project_dir = *Environment::current().text("TEST_FOLDER"), .automatic_checkpoint_naming = true};
  Accelerator accelerator(options);
  torch::nn::Linear net(512, 512);
  auto model = accelerator.prepare(net);
  accelerator.save_state();
  return 0;
}

TEST_F(CheckpointCrash, AProgramThatEndsFinishesItsSave) {
  const auto results = testing::run_processes(2, "ends_while_it_saves", {{"TEST_FOLDER", folder_}});

  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(files::verify_folder(path("checkpoints/checkpoint_0")).errors.empty());
}

}  // namespace
}  // namespace hasten
