#include "read_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ReadOptions, WhatTheEnvironmentSaysGoesBeforeTheOption) {
  const auto environment = Environment::of({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}});

  EXPECT_EQ(read_options({.gradient_accumulation_steps = 2}, environment).options.gradient_accumulation_steps,
            4);
  EXPECT_EQ(
      read_options({.gradient_accumulation_steps = 2}, Environment()).options.gradient_accumulation_steps, 2);
}

TEST(ReadOptions, LogsGoIntoTheProjectsFolderUnlessTheyHaveOne) {
  EXPECT_EQ(read_options({.project_dir = "runs"}, Environment()).options.logging_dir, "runs");
  EXPECT_EQ(read_options({.project_dir = "runs", .logging_dir = "logs"}, Environment()).options.logging_dir,
            "logs");
  EXPECT_EQ(read_options({}, Environment()).options.logging_dir, "");
}

// What `hasten launch` and `accelerate launch` hand on without being asked for anything.
TEST(ReadOptions, TheLaunchersDefaultsAreNoRequests) {
  const auto environment = Environment::of({{"ACCELERATE_MIXED_PRECISION", "no"},
                                            {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                            {"ACCELERATE_DYNAMO_MODE", "default"},
                                            {"ACCELERATE_USE_CPU", "True"},
                                            {"ACCELERATE_USE_FSDP", "false"}});

  EXPECT_NO_THROW(read_options({}, environment));
}

TEST(ReadOptions, WhatIsMissingIsRefusedByVariableAndFlagAllAtOnce) {
  const auto environment = Environment::of({{"ACCELERATE_MIXED_PRECISION", "bf16"},
                                            {"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"},
                                            {"ACCELERATE_USE_FSDP", "true"},
                                            {"ACCELERATE_USE_DEEPSPEED", "true"},
                                            {"ACCELERATE_USE_MEGATRON_LM", "true"},
                                            {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}});
  const auto read = [&] { read_options({.mixed_precision = Precision::kFp16}, environment); };

  for (const char* words :
       {"AcceleratorOptions::mixed_precision asks for mixed precision",
        "ACCELERATE_MIXED_PRECISION=bf16 (--mixed_precision) asks for mixed precision",
        "ACCELERATE_DYNAMO_BACKEND=INDUCTOR (--dynamo_backend) asks for torch.compile",
        "ACCELERATE_USE_FSDP=true (--use_fsdp)", "ACCELERATE_USE_DEEPSPEED=true (--use_deepspeed)",
        "ACCELERATE_USE_MEGATRON_LM=true (--use_megatron_lm)",
        "ACCELERATE_USE_PARALLELISM_CONFIG=true (--use_parallelism_config)"}) {
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

TEST(ReadOptions, OneObjectsPlaceIsSaidForEachObject) {
  EXPECT_EQ(device_placements({}, 2, true), (std::vector<bool>{true, true}));
  EXPECT_EQ(device_placements({.device_placement = {false, true}}, 2, true),
            (std::vector<bool>{false, true}));
  EXPECT_THAT([] { device_placements({.device_placement = {false}}, 2, true); },
              ThrowsMessage<UsageError>(HasSubstr("device_placement has 1 values for 2 objects")));
}

}  // namespace
}  // namespace hasten
