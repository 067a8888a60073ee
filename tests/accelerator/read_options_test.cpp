#include "accelerator/read_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "hasten/core/error.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ReadOptions, WhatTheEnvironmentSaysGoesBeforeTheOption) {
  const auto environment = Environment::of({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}});

  EXPECT_EQ(read_options({.gradient_accumulation_steps = 2}, environment).options.gradient_accumulation_steps, 4);
  EXPECT_EQ(read_options({.gradient_accumulation_steps = 2}, Environment()).options.gradient_accumulation_steps, 2);
}

TEST(ReadOptions, TheLaunchersDebugModeChecksAllCollectives) {
  const auto debug = Environment::of({{"ACCELERATE_DEBUG_MODE", "true"}});
  const auto both = Environment::of({{"ACCELERATE_DEBUG_MODE", "true"}, {"HASTEN_DEBUG", "0"}});

  EXPECT_EQ(read_options({}, debug).options.check, true);
  EXPECT_EQ(read_options({.check = false}, debug).options.check, false);
  EXPECT_EQ(read_options({}, both).options.check, std::nullopt) << "the group reads the other one";
  EXPECT_EQ(read_options({}, Environment()).options.check, std::nullopt);
}

// Each option of the front door comes to the room whose it is.
TEST(ReadOptions, EveryRoomGetsItsOptions) {
  const AcceleratorOptions options{
      .loader = {.split_batches = true,
                 .even_batches = false,
                 .pin_memory = false,
                 .non_blocking = true,
                 .dispatch_batches = true,
                 .use_stateful_dataloader = true,
                 .use_seedable_sampler = true,
                 .data_seed = 7,
                 .rng_types = {data::RngType::kTorch}},
      .gradient_accumulation_steps = 3,
      .accumulation = {.sync_with_dataloader = false, .sync_each_batch = true, .adjust_scheduler = true},
      .step_scheduler_with_optimizer = false,
      .scheduler = {.step_per_process = true}};
  const auto loader = loader_options(options, false);
  const auto accumulation = accumulation_options(options);
  const auto scheduler = scheduler_options(options, 4);
  auto unsplit = options;
  unsplit.loader.split_batches = false;

  EXPECT_TRUE(loader.split_batches && loader.non_blocking && loader.dispatch_batches.value());
  EXPECT_TRUE(loader.use_stateful_dataloader && loader.use_seedable_sampler);
  EXPECT_FALSE(loader.even_batches || loader.pin_memory || loader.put_on_device);
  EXPECT_EQ(loader.data_seed, 7u);
  EXPECT_EQ(loader.rng_types, std::vector{data::RngType::kTorch});
  EXPECT_EQ(accumulation.num_steps, 3);
  EXPECT_TRUE(accumulation.sync_each_batch && !accumulation.sync_with_dataloader);
  EXPECT_TRUE(scheduler.adjust_scheduler && !scheduler.step_with_optimizer);
  EXPECT_FALSE(scheduler.once_per_process) << "the global batch does not grow";
  EXPECT_TRUE(scheduler_options(unsplit, 4).once_per_process);
  EXPECT_EQ(scheduler.world_size, 4);
}

TEST(ReadOptions, OneSwitchLeavesTheProcessAsItIs) {
  const auto options = read_options({.tune_allocator = true, .change_process = false}, Environment()).options;

  EXPECT_EQ(options.tune_allocator, false);
  EXPECT_EQ(options.ddp.in_place_bytes, std::nullopt);
  EXPECT_NE(read_options({}, Environment()).options.ddp.in_place_bytes, std::nullopt);
}

TEST(ReadOptions, LogsGoIntoTheProjectsFolderUnlessTheyHaveOne) {
  EXPECT_EQ(read_options({.project = {.project_dir = "runs"}}, Environment()).options.project.logging_dir, "runs");
  EXPECT_EQ(read_options({.project = {.project_dir = "runs", .logging_dir = "logs"}}, Environment())
                .options.project.logging_dir,
            "logs");
  EXPECT_EQ(read_options({}, Environment()).options.project.logging_dir, "");
}

// What `hasten launch` and `accelerate launch` hand on without being asked for anything.
TEST(ReadOptions, TheLaunchersDefaultsAreNoRequests) {
  const auto environment = Environment::of({{"ACCELERATE_MIXED_PRECISION", "no"},
                                            {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                            {"ACCELERATE_DYNAMO_MODE", "default"},
                                            {"ACCELERATE_USE_CPU", "True"},
                                            {"ACCELERATE_USE_FSDP", "FALSE"},
                                            {"ACCELERATE_CPU_AFFINITY", "0"}});

  EXPECT_NO_THROW(read_options({}, environment));
}

TEST(ReadOptions, WhatIsMissingIsRefusedByVariableAndFlagAllAtOnce) {
  const auto environment =
      Environment::of({{"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"}, {"ACCELERATE_CPU_AFFINITY", "1"}});
  const auto read = [&] { read_options({}, environment); };

  for (const char* words : {"ACCELERATE_DYNAMO_BACKEND=INDUCTOR (--dynamo_backend) asks for torch.compile",
                            "ACCELERATE_CPU_AFFINITY=1 (--enable_cpu_affinity)", "--numa_binding node"}) {
    EXPECT_THAT(read, ThrowsMessage<UsageError>(HasSubstr(words)));
  }
}

TEST(ReadOptions, APrecisionThatDoesNotExistIsNamed) {
  EXPECT_THAT(
      [] {
        read_options({}, Environment::of({{"ACCELERATE_MIXED_PRECISION", "bf61"}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("did you mean 'bf16'")));
}

TEST(ReadOptions, ATimeoutWithoutLengthIsRefusedWithItsValueAndTheDefault) {
  const auto refused = [](std::chrono::milliseconds timeout, const std::string& value) {
    EXPECT_THAT([&] { read_options({.timeout = timeout}, Environment()); },
                ThrowsMessage<UsageError>(HasSubstr("timeout is " + value +
                                                    " ms; expected the time that ranks wait for each other, more than "
                                                    "0. Leave it out for 30 minutes.")));
  };

  refused(std::chrono::milliseconds(0), "0");
  refused(std::chrono::minutes(-1), "-60000");
  EXPECT_EQ(read_options({.timeout = std::chrono::milliseconds(1)}, Environment()).options.timeout.count(), 1);
}

TEST(ReadOptions, OneObjectsPlaceIsSaidForEachObject) {
  EXPECT_EQ(device_placements({}, 2, true), (std::vector<bool>{true, true}));
  EXPECT_EQ(device_placements({.device_placement = {false, true}}, 2, true), (std::vector<bool>{false, true}));
  EXPECT_THAT([] { device_placements({.device_placement = {false}}, 2, true); },
              ThrowsMessage<UsageError>(HasSubstr("device_placement has 1 value for 2 objects")));
}

}  // namespace
}  // namespace hasten
