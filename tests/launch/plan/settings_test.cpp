#include "hasten/launch/plan/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Config config_of(core::Value::Map values) {
  if (!core::Value(values).contains("distributed_type"))
    values.emplace_back("distributed_type", core::Value{std::string("NO")});
  return {.path = "/home/me/c.yaml", .given = values, .values = values};
}

LaunchSettings settled(const std::vector<std::string>& words, const core::Value::Map& config = {},
                       const std::map<std::string, std::string>& environment = {}) {
  const Config file = config_of(config);
  return LaunchSettings(read_command_line(launch_options(), words), &file, Environment::of(environment));
}

TEST(Settings, TheOptionBeatsTheFileBeatsTheEnvironmentBeatsTheDefault) {
  const core::Value::Map file = {{"mixed_precision", {std::string("bf16")}}};
  const std::map<std::string, std::string> variables = {{"ACCELERATE_MIXED_PRECISION", "fp16"}};

  const auto by_default = settled({});
  const auto by_environment = settled({}, {}, variables);
  const auto by_file = settled({}, file, variables);
  const auto by_option = settled({"--mixed-precision", "fp8"}, file, variables);

  EXPECT_EQ(by_default.text("mixed_precision"), "no");
  EXPECT_EQ(by_default.of("mixed_precision").origin, "default");
  EXPECT_EQ(by_environment.text("mixed_precision"), "fp16");
  EXPECT_EQ(by_environment.of("mixed_precision").origin, "ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(by_file.text("mixed_precision"), "bf16");
  EXPECT_EQ(by_file.of("mixed_precision").origin, "c.yaml: mixed_precision");
  EXPECT_EQ(by_option.text("mixed_precision"), "fp8");
  EXPECT_EQ(by_option.of("mixed_precision").origin, "option --mixed-precision");
}

TEST(Settings, TorchrunsVariablesSetItsOptions) {
  const auto settings = settled({}, {}, {{"PET_NNODES", "1:4"}, {"PET_STANDALONE", "1"}, {"PET_NODE_RANK", ""}});

  EXPECT_EQ(settings.text("nnodes"), "1:4");
  EXPECT_TRUE(settings.on("standalone"));
  EXPECT_EQ(settings.of("node_rank").source, Source::kDefault);
}

TEST(Settings, KeysOfASectionMayLackItsPrefixAndChoicesTheirCase) {
  const auto settings =
      settled({}, {{"fp8_config", {core::Value::Map{{"backend", {std::string("TE")}}, {"margin", {int64_t{3}}}}}},
                   {"dynamo_config", {core::Value::Map{{"dynamo_backend", {std::string("INDUCTOR")}}}}}});

  EXPECT_EQ(settings.text("fp8_backend"), "te");
  EXPECT_EQ(settings.integer("fp8_margin"), 3);
  EXPECT_EQ(settings.text("dynamo_backend"), "inductor");
  EXPECT_EQ(settings.of("fp8_backend").origin, "c.yaml: fp8_config.fp8_backend");
  EXPECT_THAT(settings.problems(), IsEmpty());
}

TEST(Settings, NamesThatAccelerateConfigWritesForFp8AreReadAndLaunchsOwnNamesGoBeforeThem) {
  const core::Value::Map written = {{"amax_history_length", {int64_t{16}}},
                                    {"amax_compute_algorithm", {std::string("max")}},
                                    {"optimization_level", {std::string("O1")}}};
  core::Value::Map both = written;
  both.push_back({"amax_history_len", {int64_t{8}}});

  const auto settings = settled({}, {{"fp8_config", {written}}});

  EXPECT_EQ(settings.integer("fp8_amax_history_len"), 16);
  EXPECT_EQ(settings.text("fp8_amax_compute_algo"), "max");
  EXPECT_EQ(settings.text("fp8_opt_level"), "O1");
  EXPECT_EQ(settled({}, {{"fp8_config", {both}}}).integer("fp8_amax_history_len"), 8);
  EXPECT_THAT(settings.problems(), IsEmpty());
}

TEST(Settings, TheFilesKindOfRunIsASwitchUnlessTheCommandLineChoosesAnother) {
  const core::Value::Map file = {{"distributed_type", {std::string("FSDP")}}};

  EXPECT_TRUE(settled({}, file).on("use_fsdp"));
  EXPECT_EQ(settled({}, file).of("use_fsdp").origin, "c.yaml: distributed_type");
  EXPECT_FALSE(settled({"--cpu"}, file).on("use_fsdp"));
  EXPECT_FALSE(settled({"--use_deepspeed"}, file).on("use_fsdp"));
}

TEST(Settings, WrongValuesAreNamedWithTheirSource) {
  const auto settings = settled({"-n", "0"}, {{"fsdp_config", {core::Value::Map{{"fsdp_version", {int64_t{3}}}}}}},
                                {{"PET_MAX_RESTARTS", "often"}, {"PET_STANDALONE", "perhaps"}});

  EXPECT_THAT(settings.problems(), ElementsAre("--num_processes: '0' is not a whole number between 1 and 1048576",
                                               "PET_STANDALONE: 'perhaps' is neither true nor false",
                                               "PET_MAX_RESTARTS: 'often' is not a whole number of at least 0",
                                               "c.yaml: fsdp_config.fsdp_version: '3' is not one of 1, 2"));
}

TEST(Settings, WhatAnotherMachineReadInItsFileIsNoOptionHere) {
  auto settings = settled({"--use_fsdp", "--cpu", "--max_restarts", "2"});

  settings.came_from_file({"use_fsdp", "cpu"});

  EXPECT_TRUE(settings.on("use_fsdp"));
  EXPECT_EQ(settings.of("use_fsdp").source, Source::kConfig);
  EXPECT_EQ(settings.of("cpu").source, Source::kConfig);
  EXPECT_EQ(settings.of("max_restarts").source, Source::kOption);
}

TEST(Settings, ANameThatIsNoOptionIsOurMistake) {
  EXPECT_THROW(settled({}).text("num_proceses"), InternalError);
}

}  // namespace
}  // namespace hasten::launcher
