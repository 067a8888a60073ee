// DeepSpeed configurations: where they come from, what is wrong with them, and the methods of the peer's classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "hasten/core/error.h"
#include "hasten/settings/deepspeed_plugin.h"
#include "settings/deepspeed_keys.h"
#include "settings/relaxed_json.h"

namespace hasten::plan {
namespace {

using core::Value;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class E, class Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

DeepSpeedConfig config_of(const std::string& json) {
  return DeepSpeedConfig(parse_relaxed_json(json, "ds.json"), "ds.json");
}

TEST(RelaxedJson, comments_and_trailing_commas_are_read) {
  const auto value = parse_relaxed_json(
      "# a file\n{ // with words\n \"a\": [1, 2.5, 2e8,], /* and\n more */ \"b\": \"\\u00e4\\n\",\n}\n", "f");
  EXPECT_EQ(value.to_json(), Value::map({{"a", Value::list({1, 2.5, 2e8})}, {"b", "ä\n"}}).to_json());
}

TEST(RelaxedJson, errors_name_line_and_column) {
  EXPECT_THAT(message_of<DataError>([] { parse_relaxed_json("{\n  \"a\": 1,\n  \"a\": 2\n}", "ds.json"); }),
              HasSubstr("ds.json:3:3: the key \"a\" a second time"));
  EXPECT_THAT(message_of<DataError>([] { parse_relaxed_json("{\"a\" 1}", "ds.json"); }),
              HasSubstr("ds.json:1:6: '1'; expected ':'"));
  EXPECT_THAT(message_of<DataError>([] { parse_relaxed_json("{\"a\": nul}", "ds.json"); }), HasSubstr("'nul'"));
  for (const char* bad :
       {"", "{", "[1", "{\"a\":", "\"x", "{} {}", "/*", "{\"a\": 1 \"b\": 2}", "[01x]", "\"\\q\"", "\"\\u12\""}) {
    EXPECT_THROW(parse_relaxed_json(bad, "f"), DataError) << bad;
  }
}

TEST(DeepSpeedConfig, a_file_a_map_json_text_and_base64_are_read_alike) {
  const std::string json = R"({"zero_optimization": {"stage": 3}, "train_batch_size": 8})";
  const std::string path = ::testing::TempDir() + "hasten_ds_config.json";
  std::ofstream(path) << json;
  const auto map = Value::parse_json(json);
  const std::string base64 = "eyJ6ZXJvX29wdGltaXphdGlvbiI6IHsic3RhZ2UiOiAzfSwgInRyYWluX2JhdGNoX3NpemUiOiA4fQ==";
  for (const Value& form : {map, Value(json), Value(path), Value(base64)})
    EXPECT_EQ(DeepSpeedConfig::read(form).config(), map);
  std::filesystem::remove(path);
  EXPECT_THAT(message_of<UsageError>([] { DeepSpeedConfig::read("no_such_file.json"); }),
              HasSubstr("no_such_file.json"));
  EXPECT_THROW(DeepSpeedConfig::read("bm90aGluZw=="), UsageError);
  EXPECT_THROW(DeepSpeedConfig::read(3), UsageError);
}

TEST(DeepSpeedConfig, dotted_keys_are_found_filled_and_removed) {
  auto config = config_of(
      R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": false}})");
  EXPECT_EQ(config.get_value("zero_optimization.stage"), Value(3));
  EXPECT_EQ(config.get_value("zero_optimization.nothing", 7), Value(7));
  EXPECT_TRUE(config.is_zero3() && config.is_offload() && config.is_auto("bf16.enabled") &&
              config.is_false("fp16.enabled"));
  EXPECT_FALSE(config.is_zero2() || config.is_true("fp16.enabled"));
  const auto [node, last] = config.find_config_node("zero_optimization.offload_param.device");
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(last, "device");
  EXPECT_EQ(config.find_config_node("nothing.at.all").first, nullptr);
  config.del_config_sub_tree("zero_optimization.offload_param");
  EXPECT_FALSE(config.is_offload());
  EXPECT_THROW(config.del_config_sub_tree("zero_optimization.offload_param", true), UsageError);
  config.process({{"bf16.enabled", true}});
  EXPECT_TRUE(config.is_true("bf16.enabled"));
}

TEST(DeepSpeedConfig, mismatches_are_told_together) {
  auto config = config_of(R"({"gradient_clipping": 0.5, "train_batch_size": 8})");
  EXPECT_THAT(message_of<UsageError>([&] {
                config.process({{"gradient_clipping", 1.0}, {"train_batch_size", 16}});
              }),
              AllOf(HasSubstr("gradient_clipping is 0.5 in ds.json and 1.0"),
                    HasSubstr("train_batch_size is 8 in ds.json and 16")));
  EXPECT_NO_THROW(config.process({{"gradient_clipping", 0.5}, {"train_batch_size", 8.0}}));
}

TEST(DeepSpeedConfig, all_problems_come_in_one_message) {
  const auto config =
      config_of(R"({"fp16": {"enabled": true, "loss_scal": 1}, "bf16": {"enabled": true}, "train_batch_size": "8",
    "zero_optimization": {"stage": 4, "reduce_bucket_size": 0.5, "offload_optimizer": {"device": "disk", "ratio": 2}}})");
  EXPECT_THAT(message_of<UsageError>([&] { resolve_deepspeed(config, 2); }),
              AllOf(HasSubstr("ds.json"), HasSubstr("fp16.loss_scal"), HasSubstr("did you mean 'loss_scale'"),
                    HasSubstr("stage is 4"), HasSubstr("both true"),
                    HasSubstr("reduce_bucket_size is 0.5; expected a whole number"),
                    HasSubstr("expected a number, without quotes"), HasSubstr("expected none or cpu or nvme"),
                    HasSubstr("ratio is 2; expected 0 to 1")));
}

TEST(DeepSpeedConfig, a_world_without_processes_is_refused) {
  EXPECT_THROW(solve_batch(8, 4, {}, 0), UsageError);
  DeepSpeedSettings settings;
  EXPECT_THROW(fill_auto(settings, {.world_size = 0}), UsageError);
}

TEST(DeepSpeedConfig, a_batch_size_that_is_no_whole_number_is_named) {
  for (const std::string key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    DeepSpeedSettings settings;
    settings.config = config_of(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4})");
    settings.config.config()[key] = 1.5;
    settings.writes_accumulation = true;
    EXPECT_THAT(message_of<UsageError>([&] { fill_auto(settings, {.world_size = 2}); }),
                AllOf(HasSubstr(key + " is 1.5"), HasSubstr("ds.json"), HasSubstr("a whole number")));
  }
}

TEST(DeepSpeedConfig, a_batch_size_that_nothing_gives_is_asked_for_once) {
  EXPECT_THAT(message_of<UsageError>([&] { resolve_deepspeed(config_of("{}"), 2); }),
              HasSubstr("ds.json: no batch size is known; expected train_batch_size"));
}

TEST(DeepSpeedConfig, what_the_engine_lacks_is_refused_by_name) {
  const auto refused = [](const std::string& json) {
    const auto config = config_of(json);
    return message_of<UsageError>([&] { require_supported(resolve_deepspeed(config, 2), config); });
  };
  EXPECT_THAT(refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_quantized_weights": true}})"),
              HasSubstr("zero_quantized_weights"));
  EXPECT_THAT(
      refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})"),
      HasSubstr("nvme_path"));
  EXPECT_THAT(
      refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"),
      HasSubstr("stage 2"));
  EXPECT_THAT(
      refused(
          R"({"train_batch_size": 8, "gradient_clipping": 1, "zero_optimization": {"stage": 2, "compute_grad_norm": false}})"),
      HasSubstr("compute_grad_norm"));
  EXPECT_THAT(refused(R"({"train_batch_size": 8, "sequence_parallel_size": 2})"), HasSubstr("sequence_parallel_size"));
  EXPECT_EQ(refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}})"), "nothing was thrown");
  EXPECT_THAT(refused(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "half"}})"),
              AllOf(HasSubstr("param_dtype is fp16"), HasSubstr("make it bf16")));
  EXPECT_THAT(refused(R"({"train_batch_size": 8, "data_types": {"param_dtype": "bf16"}})"), HasSubstr("make it fp32"));
  EXPECT_EQ(refused(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "data_types": {"param_dtype": "float16"}})"),
            "nothing was thrown");
  EXPECT_THAT(message_of<UsageError>(
                  [] { resolve_deepspeed(config_of(R"({"train_batch_size": 8, "amp": {"enabled": true}})"), 1); }),
              HasSubstr("mixed_precision"));
}

TEST(DeepSpeedConfig, a_gradient_dtype_that_is_not_float32_is_a_line_in_the_log) {
  const auto notes = [](const std::string& dtype) {
    return resolve_deepspeed(
               config_of(R"({"train_batch_size": 8, "data_types": {"grad_accum_dtype": ")" + dtype + "\"}}"), 2)
        .notes;
  };
  EXPECT_TRUE(notes("fp32").empty());
  EXPECT_THAT(notes("bf16"), ::testing::ElementsAre(HasSubstr("bf16: gradients are added up in float32")));
}

TEST(DeepSpeedConfig, lists_are_lists_of_names_and_auto_modules_wait_for_nothing) {
  EXPECT_THAT(message_of<UsageError>([] {
                resolve_deepspeed(config_of(R"({"train_batch_size": 8, "data_types": {"keep_in_fp32_modules": [1]},
      "torch_autocast": {"lower_precision_safe_modules": "torch.nn.Linear"},
      "zero_optimization": {"leaf_module": {"names": 3}, "offload_optimizer": {"cpuadam_cores_perc": 1.5}}})"),
                                  2);
              }),
              AllOf(HasSubstr("keep_in_fp32_modules is [1]; expected a list of names"),
                    HasSubstr("lower_precision_safe_modules is"), HasSubstr("leaf_module.names is 3"),
                    HasSubstr("cpuadam_cores_perc is 1.5")));
  const auto config = config_of(R"({"train_batch_size": 8, "data_types": {"keep_in_fp32_modules": "auto"},
      "zero_optimization": {"leaf_module": {"classes": ["a.b.Moe"], "names": "experts"}}})");
  EXPECT_TRUE(config.auto_keys().empty());
  const auto resolved = resolve_deepspeed(config, 2);
  EXPECT_TRUE(resolved.names("data_types.keep_in_fp32_modules").empty());
  EXPECT_THAT(resolved.class_names("zero_optimization.leaf_module.classes"), ::testing::ElementsAre("Moe"));
  EXPECT_THAT(resolved.names("zero_optimization.leaf_module.names"), ::testing::ElementsAre("experts"));
}

TEST(DeepSpeedConfig, quoted_numbers_and_letters_of_any_case_are_read_as_deepspeed_does) {
  const auto resolved = resolve_deepspeed(
      config_of(R"({"train_batch_size": 8, "gradient_allreduce_op": "SUM", "communication_data_type": "FP16",
    "zero_optimization": {"stage": "2", "reduce_bucket_size": "500", "round_robin_gradients": "yes"}})"),
      2);
  EXPECT_EQ(resolved.stage, 2);
  EXPECT_EQ(resolved.count("zero_optimization.reduce_bucket_size"), 500);
  EXPECT_TRUE(resolved.on("zero_optimization.round_robin_gradients"));
  EXPECT_EQ(resolved.text("gradient_allreduce_op"), "sum");
  EXPECT_EQ(resolved.text("communication_data_type"), "fp16");
  EXPECT_EQ(resolve_deepspeed(config_of(R"({"train_batch_size": 8, "zero_optimization": true})"), 2).stage, 1);
  EXPECT_EQ(resolve_deepspeed(config_of(R"({"train_batch_size": 8, "zero_optimization": false})"), 2).stage, 0);
}

TEST(DeepSpeedConfig, settings_that_do_not_go_together_are_refused) {
  const auto problem = [](const std::string& rest) {
    return message_of<UsageError>([&] { resolve_deepspeed(config_of(R"({"train_batch_size": 8, )" + rest + "}"), 2); });
  };
  EXPECT_THAT(problem(R"("zero_optimization": {"stage": 3, "compute_grad_norm": false})"),
              HasSubstr("compute_grad_norm is false at stage 3"));
  EXPECT_THAT(problem(R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.3}})"),
              HasSubstr("ratio is below 1 at stage 2"));
  EXPECT_THAT(problem(R"("zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": null})"),
              HasSubstr("cpu_offload is the old name"));
  EXPECT_THAT(problem(R"("zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true,
                         "stage3_gather_16bit_weights_on_model_save": true})"),
              HasSubstr("old name"));
  EXPECT_THAT(problem(R"("gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3})"), HasSubstr("stage 3"));
  EXPECT_THAT(problem(R"("fp16": {"enabled": true, "min_loss_scale": 0})"), HasSubstr("min_loss_scale is 0"));
  EXPECT_THAT(problem(R"("bf16": {"enabled": true, "bf16_optimizer_states": true}, "zero_optimization": {"stage": 1})"),
              HasSubstr("bf16_optimizer_states is true without"));
  EXPECT_THAT(problem(R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})"), HasSubstr("stage 0"));
  EXPECT_THAT(problem(R"("tensorboard": {"enabled": true, "output_pth": "x"})"), HasSubstr("output_path"));
  EXPECT_THAT(problem(R"("zero_optimization": {"stage": 3, "fast_init": true})"), HasSubstr("unknown key"));
  EXPECT_EQ(problem(R"("fp16": {"enabled": true, "loss_scale": 8, "min_loss_scale": 0})"), "nothing was thrown");
}

TEST(DeepSpeedPlugin, an_empty_variable_is_a_wrong_value) {
  for (const char* name : {"ACCELERATE_GRADIENT_CLIPPING", "ACCELERATE_DEEPSPEED_ZERO_STAGE",
                           "ACCELERATE_DEEPSPEED_ZERO3_INIT", "ACCELERATE_DEEPSPEED_CONFIG_FILE"}) {
    EXPECT_THROW(resolve_deepspeed_plugin({}, Environment::of({{name, ""}})), UsageError) << name;
  }
  EXPECT_EQ(resolve_deepspeed_plugin({}, Environment::of({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", " 3"}})).zero_stage,
            Value(3));
}

TEST(DeepSpeedPlugin, a_dtype_that_a_text_enables_contradicts_the_program_as_well) {
  const auto file = Value::parse_json(R"({"zero_optimization": {"stage": 2}, "fp16": {"enabled": "true"}})");
  auto settings = resolve_deepspeed_plugin({.hf_ds_config = file}, Environment::of({}));
  EXPECT_THROW(set_mixed_precision(settings, "bf16"), UsageError);
  EXPECT_THROW(resolve_deepspeed_plugin({.hf_ds_config = Value::parse_json(R"({"zero_optimization": true})")},
                                        Environment::of({})),
               UsageError);
}

TEST(DeepSpeedConfig, every_key_has_a_default_of_its_type_and_one_place) {
  std::set<std::string> seen;
  for (const auto& key : deepspeed_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_NO_THROW(Value::parse_json(key.otherwise)) << key.path;
    const bool explains = key.answer == KeyAnswer::kRefused || key.answer == KeyAnswer::kRemoved;
    EXPECT_TRUE(!explains || key.words[0] != '\0') << key.path << " is refused without a remedy";
    EXPECT_EQ(find_deepspeed_key(key.path), &key);
  }
}

TEST(DeepSpeedPlugin, what_is_unknown_stays_auto_until_the_first_backward) {
  auto settings = resolve_deepspeed_plugin({.zero_stage = 2}, Environment::of({}));
  fill_auto(settings, {.world_size = 2, .has_model = true});
  EXPECT_THAT(message_of<UsageError>([&] { require_filled(settings); }),
              AllOf(HasSubstr("train_micro_batch_size_per_gpu"), HasSubstr("a loader with a batch size")));
  fill_auto(settings, {.world_size = 2, .batch_sizes = {4}, .has_model = false});
  EXPECT_NO_THROW(require_filled(settings));
  EXPECT_EQ(settings.config.get_value("train_batch_size"), Value(8));
}

TEST(DeepSpeedKeys, every_key_stands_in_the_documentation_with_its_answer) {
  std::ifstream file(HASTEN_SOURCE_DIR "/docs/from-deepspeed.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const char* answers[] = {"honoured", "where filled", "ignored", "refused", "removed"};
  for (const auto& key : deepspeed_keys()) {
    const auto row = text.find(std::string("| `") + key.path + "` |", text.find("## Every key"));
    ASSERT_NE(row, std::string::npos) << key.path;
    const std::string line = text.substr(row, text.find('\n', row) - row);
    EXPECT_THAT(line, HasSubstr(std::string("| ") + answers[static_cast<int>(key.answer)] + " |")) << line;
    EXPECT_THAT(line, HasSubstr(key.answer == KeyAnswer::kIgnored ? key.words : ""));
  }
}

}  // namespace
}  // namespace hasten::plan
