#include "hasten/launch/plan/unknown_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/launch/options/command_line.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> unknown(const std::vector<std::string>& words) {
  return unknown_words(LaunchSettings(read_command_line(launch_options(), words), nullptr, Environment::of({})));
}

TEST(UnknownWords, AreNamedWithTheirSettingAndTheWordsThatThereAre) {
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_sharding_strategy", "FULL"}),
              ElementsAre("--fsdp_sharding_strategy: 'FULL' is not one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, "
                          "HYBRID_SHARD, HYBRID_SHARD_ZERO2"));
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_state_dict_type", "full_state_dic"}),
              ElementsAre("--fsdp_state_dict_type: 'full_state_dic' is not one of FULL_STATE_DICT, LOCAL_STATE_DICT, "
                          "SHARDED_STATE_DICT, did you mean 'FULL_STATE_DICT'?"));
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_backward_prefetch", "3", "--fsdp_auto_wrap_policy", "1",
                       "--fsdp_reshard_after_forward", "perhaps"}),
              ::testing::SizeIs(3));
}

TEST(UnknownWords, NamesInAnyCaseTheirNumbersAndDefaultsAreKnown) {
  EXPECT_THAT(unknown({"--use_fsdp"}), IsEmpty());
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_sharding_strategy", "shard_grad_op", "--fsdp_backward_prefetch", "2",
                       "--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--fsdp_auto_wrap_policy", "no_wrap",
                       "--fsdp_reshard_after_forward", "false"}),
              IsEmpty());
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_sharding_strategy", "_HYBRID_SHARD_ZERO2"}), IsEmpty());
  EXPECT_THAT(unknown({"--use_fsdp", "--fsdp_sharding_strategy", "5", "--fsdp_reshard_after_forward", "2"}), IsEmpty());
}

TEST(UnknownWords, AFileOfDeepSpeedThatIsNotThereIsNamed) {
  EXPECT_THAT(unknown({"--use_deepspeed", "--deepspeed_config_file", "no/such.json"}),
              ElementsAre("deepspeed_config_file 'no/such.json' does not exist; correct the path"));
  EXPECT_THAT(unknown({"--use_deepspeed", "--deepspeed_config_file", "eyJ6ZXJvIjogMX0="}), IsEmpty());
}

std::vector<std::string> idle(const std::vector<std::string>& words) {
  return options_without_effect(
      LaunchSettings(read_command_line(launch_options(), words), nullptr, Environment::of({})));
}

TEST(OptionsWithoutEffect, AreNamedWithTheSwitchThatTheyNeed) {
  EXPECT_THAT(idle({"--zero_stage", "3", "-n", "2"}),
              ElementsAre("--zero_stage has no effect without --use_deepspeed."));
  EXPECT_THAT(idle({"--fsdp_offload_params", "true", "--fsdp_version", "2", "--fp8_margin", "1"}),
              ElementsAre("--fsdp_version, --fsdp_offload_params have no effect without --use_fsdp.",
                          "--fp8_margin has no effect without --mixed_precision fp8."));
  EXPECT_THAT(idle({"--use_deepspeed", "--zero_stage", "3"}), IsEmpty());
  EXPECT_THAT(idle({"-n", "2"}), IsEmpty());
}

}  // namespace
}  // namespace hasten::launcher
