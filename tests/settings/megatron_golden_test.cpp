// Accelerate's MegatronLMPlugin, and Megatron-Core's schedule, as the peers resolve them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "hasten/core/error.h"
#include "hasten/settings/megatron_plugin.h"
#include "hasten/settings/megatron_schedule.h"
#include "support/golden.h"

namespace hasten::plan {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using ::testing::HasSubstr;

core::Value parsed(const json& value) {
  return core::Value::parse_json(value.dump());
}

json json_of(const core::Value& value) {
  return json::parse(value.to_json());
}

// Our outcome; the peers' ValueErrors and assertions are UsageErrors.
json given_by(const std::function<json()>& run, const char* error = "ValueError") {
  try {
    return run();
  } catch (const UsageError&) {
    return testing::golden_error(error);
  }
}

json plugin_case(const GoldenCase& golden) {
  return given_by([&] {
    const MegatronPlugin plugin(
        parsed(golden.input.at("arguments")),
        Environment::of(golden.input.at("environment").get<std::map<std::string, std::string>>()));
    json fields = json::object();
    const json expected = golden.expected.value("fields", json::object());
    for (const auto& [name, value] : expected.items()) {
      fields[name] = name == "DDP_impl" ? json_of(plugin.arguments().at("DDP_impl")) : json_of(plugin[name]);
    }
    return json{{"arguments", json_of(plugin.arguments())}, {"fields", fields}};
  });
}

// One context unless more are asked for, and arguments of recompute only where it is on.
json without_quirks(const GoldenCase& golden) {
  if (golden.expected.contains("error")) return json::object();
  const json& given = golden.input.at("arguments");
  for (const auto& [name, value] : given.items()) {
    if (value.is_number() && value < 0) return testing::golden_error("ValueError");
  }
  json arguments = golden.expected.at("arguments");
  arguments["context_parallel_size"] = given.value("context_parallel_size", 1);
  if (!golden.expected.at("fields").value("recompute_activations", false)) {
    for (const char* name : {"recompute_granularity", "recompute_method", "recompute_num_layers"}) {
      arguments[name] = nullptr;
    }
  }
  return {{"arguments", arguments}};
}

TEST(MegatronPlugin, ResolvesAsAccelerateDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "plugin"; });
  topic.on_every_case(without_quirks);

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return plugin_case(golden); }); });

  topic.finish();
}

std::optional<int64_t> length_of(const json& batch, int64_t divisor) {
  return batch.is_null() ? std::nullopt : std::optional<int64_t>(batch.at(1).get<int64_t>() / divisor);
}

json network_case(const GoldenCase& golden) {
  return given_by([&] {
    const MegatronPlugin plugin(parsed(golden.input.at("arguments")), Environment::of({}));
    MegatronModel model{.type = golden.input.at("model").get<std::string>(),
                        .config = parsed(golden.input.at("config"))};
    // "…-class" stands for a class of transformers with a head for classes.
    if (const auto end = model.type.find("-class"); end != std::string::npos) {
      model.type.erase(end);
      model.masked_words = false;
    }
    model.input_length = length_of(golden.input.at("batch"), 1);
    model.label_length = length_of(golden.input.at("batch"), 2);
    const auto found = megatron_network(plugin, model);
    json out = {{"arguments", json_of(found.arguments)},
                {"seq_length", json_of(found.seq_length)},
                {"encoder_seq_length", json_of(found.encoder_seq_length)},
                {"decoder_seq_length", json_of(found.decoder_seq_length)}};
    if (!found.warnings.empty()) out["warnings"] = found.warnings;
    return out;
  });
}

TEST(MegatronPlugin, DescribesNetworksAsAccelerateDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "network"; });
  // A length that the program gives stays.
  topic.on_quirk("sequence-length-lost", [](const GoldenCase& golden) {
    json arguments = golden.expected.at("arguments");
    arguments["seq_length"] = golden.input.at("arguments").at("seq_length");
    return json{{"arguments", arguments}, {"seq_length", arguments.at("seq_length")}};
  });

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return network_case(golden); }); });

  topic.finish();
}

json training_case(const GoldenCase& golden) {
  return given_by([&] {
    const json& input = golden.input;
    const MegatronPlugin plugin(parsed(input.at("arguments")), Environment::of({}));
    const auto found = megatron_training(plugin, {.optimizer = parsed(input.at("optimizer")),
                                                  .mixed_precision = input.at("mixed_precision").get<std::string>(),
                                                  .micro_batch_size = input.at("micro_batch_size"),
                                                  .data_parallel_size = input.at("dp_degree"),
                                                  .total_num_steps = input.at("total_num_steps"),
                                                  .warmup_num_steps = input.at("warmup_num_steps")});
    json out = {{"arguments", json_of(found.arguments)}, {"global_batch_size", found.global_batch_size}};
    if (!found.warnings.empty()) out["warnings"] = found.warnings;
    return out;
  });
}

TEST(MegatronPlugin, TrainsAsAccelerateSays) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "training"; });

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return training_case(golden); }); });

  topic.finish();
}

json schedule_case(const GoldenCase& golden) {
  return given_by(
      [&] {
        const json& of = golden.input.at("options");
        const MegatronSchedule schedule({.init_lr = of.at("init_lr"),
                                         .max_lr = of.at("max_lr"),
                                         .min_lr = of.at("min_lr"),
                                         .warmup = of.at("warmup"),
                                         .decay = of.at("decay"),
                                         .style = of.at("style").get<std::string>(),
                                         .wsd_steps = of.value("wsd_steps", int64_t{0}),
                                         .wsd_style = of.value("wsd_style", std::string("exponential")),
                                         .start_weight_decay = of.at("start_wd"),
                                         .end_weight_decay = of.at("end_wd"),
                                         .weight_decay_steps = of.at("wd_steps"),
                                         .weight_decay_style = of.at("wd_style").get<std::string>()});
        json groups = json::array();
        int64_t samples = 0;
        const auto note = [&] {
          json one = json::array();
          for (const auto& group : of.at("groups")) {
            const double most = group.value("max_lr", of.at("max_lr").get<double>());
            const double least = group.value("min_lr", of.at("min_lr").get<double>());
            one.push_back({schedule.rate(samples, most, least), schedule.weight_decay(samples)});
          }
          groups.push_back(one);
        };
        note();
        for (const int64_t increment : golden.input.at("increments")) {
          samples += increment;
          note();
        }
        return json{{"groups", groups}};
      },
      "AssertionError");
}

TEST(MegatronSchedule, GivesMegatronsRatesAndWeightDecays) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "schedule"; });
  topic.tolerate({.relative = 1e-9, .absolute = 1e-15});

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return schedule_case(golden); }); });

  topic.finish();
}

MegatronPlugin plugin_of(const char* fields) {
  return MegatronPlugin(core::Value::parse_json(fields), Environment::of({}));
}

TEST(MegatronPlugin, LaysOutTheRanks) {
  EXPECT_EQ(plugin_of(R"({"tp_degree": 2})").layout(8), (MegatronLayout{.dp_replicate = 4, .tp = 2}));
  EXPECT_EQ(plugin_of(R"({"tp_degree": 2, "pp_degree": 2, "context_parallel_size": 2,
                          "use_distributed_optimizer": true})")
                .layout(16),
            (MegatronLayout{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2}));
  EXPECT_THROW(plugin_of(R"({"tp_degree": 3})").layout(8), UsageError);
  EXPECT_THROW(plugin_of(R"({"expert_model_parallel_size": 2})").layout(8), UsageError);
}

std::string words_of(const char* fields) {
  try {
    plugin_of(fields);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MegatronPlugin, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(words_of(R"({"tp_degre": 2})"), HasSubstr("has no field 'tp_degre', did you mean 'tp_degree'?"));
  EXPECT_THAT(words_of(R"({"tp_degree": "2"})"), HasSubstr("tp_degree is \"2\"; expected an integer of at least 1"));
  EXPECT_THAT(words_of(R"({"num_micro_batches": 0})"), HasSubstr("num_micro_batches is 0"));
  EXPECT_THAT(words_of(R"({"sequence_parallelism": true})"), HasSubstr("sequence_parallelism with tp_degree 1"));
}

TEST(MegatronPlugin, SaysWhatFewMicrobatchesCost) {
  EXPECT_THAT(plugin_of(R"({"pp_degree": 4})").remarks(),
              ::testing::ElementsAre(HasSubstr("the stages wait for 75 % of a step")));
  EXPECT_THAT(plugin_of(R"({"pp_degree": 4, "num_micro_batches": 8})").remarks(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace hasten::plan
