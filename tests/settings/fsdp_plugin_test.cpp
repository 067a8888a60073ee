// Settings of FSDP that the peers' golden cases do not show: numbers in Python's spellings, empty names, arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/settings/fsdp_plugin.h"

namespace hasten::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FsdpSettings under(const std::map<std::string, std::string>& variables, const FsdpPlugin& plugin = {}) {
  return resolve_fsdp(plugin, Environment::of(variables));
}

TEST(FsdpPlugin, numbers_are_read_as_python_reads_them) {
  EXPECT_EQ(under({{"FSDP_VERSION", " 2"}}).fsdp_version, 2);
  EXPECT_EQ(under({{"FSDP_SHARDING_STRATEGY", "02"}}).sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_EQ(under({{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}, {"FSDP_MIN_NUM_PARAMS", " +7 "}}).min_num_params, 7);
  EXPECT_THROW(under({{"FSDP_SHARDING_STRATEGY", "0"}}), UsageError);
  EXPECT_THROW(under({{"FSDP_VERSION", ""}}), UsageError);
}

TEST(FsdpPlugin, an_empty_class_name_stays_for_the_model_to_refuse) {
  const auto settings =
      under({{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}, {"FSDP_TRANSFORMER_CLS_TO_WRAP", "A, B,"}});
  EXPECT_THAT(settings.transformer_cls_names_to_wrap.value(), ElementsAre("A", "B", ""));
}

TEST(FsdpPlugin, arguments_are_kept_where_no_policy_reads_them) {
  const auto settings =
      under({}, {.transformer_cls_names_to_wrap = std::vector<std::string>{"A"}, .min_num_params = 3});
  EXPECT_FALSE(settings.auto_wrap_policy);
  EXPECT_THAT(settings.transformer_cls_names_to_wrap.value(), ElementsAre("A"));
  EXPECT_EQ(settings.min_num_params, 3);
  ASSERT_EQ(settings.notes.size(), 1);
  EXPECT_THAT(settings.notes[0], HasSubstr("no effect without their auto_wrap_policy"));
  EXPECT_THROW(under({}, {.min_num_params = -1}), UsageError);
}

TEST(FsdpPlugin, only_the_launchers_variable_may_hand_true_to_version_1) {
  EXPECT_EQ(under({{"FSDP_RESHARD_AFTER_FORWARD", "true"}}).sharding_strategy, ShardingStrategy::kFullShard);
  EXPECT_THROW(under({}, {.reshard_after_forward = "true"}), UsageError);
  EXPECT_EQ(under({}, {.reshard_after_forward = "SHARD_GRAD_OP"}).sharding_strategy, ShardingStrategy::kShardGradOp);
}

TEST(ToFsdp2, texts_of_true_and_false_stay_as_they_are) {
  const auto config = core::Value::parse_json(R"({"fsdp_config": {"fsdp_reshard_after_forward": "true"}})");
  EXPECT_EQ(convert_to_fsdp2(config).config.at("fsdp_config").at("fsdp_reshard_after_forward"), core::Value("true"));
}

}  // namespace
}  // namespace hasten::plan
