// Documented differences of settings of FSDP and DeepSpeed (docs/differences.md); each rule is computed from the case
// alone.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "settings/deepspeed_keys.h"
#include "support/golden.h"

namespace hasten::testing::sharding_config {

using nlohmann::json;

inline json refused(const GoldenCase&) {
  return {{"error", "UsageError"}};
}

inline std::string upper_text(std::string text) {
  for (auto& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

/// -1 for no strategy; else its index in FULL, GRAD_OP, NO, HYBRID, HYBRID_ZERO2.
inline int strategy_index(const std::string& text) {
  const std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                          "HYBRID_SHARD_ZERO2"};
  std::string word = upper_text(text);
  if (word == "_HYBRID_SHARD_ZERO2") word = word.substr(1);
  for (size_t i = 0; i < names.size(); ++i) {
    if (word == names[i] || word == std::to_string(i + 1)) return static_cast<int>(i);
  }
  return -1;
}

/// A setting's text: of arguments, else of variables. Numbers are written out.
inline std::string setting(const GoldenCase& golden, const char* argument, const char* variable,
                           const std::string& otherwise) {
  const auto args = golden.input.value("args", json::object());
  const auto value =
      args.contains(argument) ? args[argument] : golden.input.value("env", json::object()).value(variable, json());
  if (value.is_null()) return otherwise;
  return value.is_string() ? value.get<std::string>() : value.dump();
}

inline json strategy_counts_in_version_2(const GoldenCase& golden) {
  const std::string text = setting(golden, "sharding_strategy", "FSDP_SHARDING_STRATEGY", "");
  const int strategy = strategy_index(text);
  if (strategy < 0) return {{"error", "UsageError"}};
  const bool reshards = strategy == 0 || strategy == 3;
  const std::string reshard = setting(golden, "reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", "");
  bool own = reshards;
  if (!reshard.empty()) {
    const std::string word = upper_text(reshard);
    own = word == "TRUE" || word == "1" || word == "YES" || word == "ON" || word == "T" || word == "Y";
    if (strategy != 0 && own != reshards) return {{"error", "UsageError"}};
  }
  return {{"fsdp_version", 2}, {"sharding_strategy", nullptr}, {"reshard_after_forward", own}};
}

inline json resharding_names_a_strategy_in_version_1(const GoldenCase& golden) {
  const auto env = golden.input.value("env", json::object()), args = golden.input.value("args", json::object());
  const bool in_args = args.contains("reshard_after_forward") && args["reshard_after_forward"].is_string();
  const std::string text =
      in_args ? args["reshard_after_forward"].get<std::string>() : env.value("FSDP_RESHARD_AFTER_FORWARD", "");
  const std::string word = upper_text(text);
  const int strategy = strategy_index(text);
  for (const char* each : {"TRUE", "FALSE", "T", "F", "YES", "NO", "Y", "N", "ON", "OFF", "0", "1"}) {
    if (!in_args && word == each) return {};
  }
  if (strategy < 0) return {{"error", "UsageError"}};
  const std::string given = setting(golden, "sharding_strategy", "FSDP_SHARDING_STRATEGY", "1");
  const int own = strategy_index(given);
  if (own < 0 || (own > 0 && strategy > 0 && own != strategy)) return {{"error", "UsageError"}};
  const char* names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"};
  return {{"sharding_strategy", names[std::max(own, strategy)]}, {"reshard_after_forward", nullptr}};
}

// The argument is the same difference as the variable, and has no quirk of its own.
inline json resharding_argument_names_a_strategy(const GoldenCase& golden) {
  const auto args = golden.input.value("args", json::object());
  if (golden.expected.value("fsdp_version", 0) != 1 || !args.contains("reshard_after_forward")) return {};
  if (args["reshard_after_forward"].is_number()) return {{"error", "UsageError"}};
  if (!args["reshard_after_forward"].is_string()) return {};
  return resharding_names_a_strategy_in_version_1(golden);
}

// A pattern that matches the model itself would leave nothing to shard.
inline json empty_pattern_ignores_nothing(const GoldenCase& golden) {
  if (golden.expected.value("ignored_modules", json()) != "") return {};
  return {{"ignored_modules", nullptr}};
}

inline json strategies_become_flags(const GoldenCase& golden) {
  json config = golden.expected.at("config");
  const auto& section = golden.input.at("config").at("fsdp_config");
  for (const char* key : {"fsdp_reshard_after_forward", "fsdp_sharding_strategy"}) {
    if (!section.contains(key)) continue;
    const auto& value = section[key];
    const int strategy = strategy_index(value.is_string() ? value.get<std::string>() : value.dump());
    if (strategy < 0) return {{"error", "UsageError"}};
    config["fsdp_config"]["fsdp_reshard_after_forward"] = strategy == 0 || strategy == 3;
  }
  return {{"config", config}};
}

inline json names_are_trimmed(const GoldenCase& golden) {
  if (!golden.expected.value("transformer_cls_names_to_wrap", json()).is_array()) return {};
  json names = json::array();
  for (const auto& each : golden.expected["transformer_cls_names_to_wrap"]) {
    const auto text = each.get<std::string>();
    const auto first = text.find_first_not_of(' ');
    names.push_back(first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1));
  }
  return {{"transformer_cls_names_to_wrap", names}};
}

// Accelerate's configuration, without what nobody wrote: clipping, and one step of accumulation in place of the
// program's. The patch names whole keys: the rest of `config` stays as it was.
inline json only_what_is_written(const GoldenCase& golden) {
  const auto config = golden.input.value("config", json::object());
  const auto plugin = golden.input.value("plugin", json::object());
  const auto is_in_file = [&](const char* key) { return config.contains(key) || plugin.contains(key); };
  const bool is_overruled =
      std::count(golden.quirks.begin(), golden.quirks.end(), std::string("accumulation-overruled")) > 0;
  if (is_overruled && is_in_file("gradient_accumulation_steps")) return {{"error", "UsageError"}};
  if (is_in_file("gradient_clipping") && !is_overruled) return {};
  const bool has_fixed = golden.fixed.is_object() && golden.fixed.contains("config");
  json patch = {{"config", has_fixed ? golden.fixed["config"] : golden.expected.at("config")}};
  if (!is_in_file("gradient_clipping")) patch["config"].erase("gradient_clipping");
  if (is_overruled) {
    const auto steps = golden.input["gradient_accumulation_steps"].get<int64_t>();
    json& own = patch["config"];
    const auto before = own.at("gradient_accumulation_steps").get<int64_t>();
    own["gradient_accumulation_steps"] = steps;
    if (config.value("train_batch_size", json()) == "auto")
      own["train_batch_size"] = own.at("train_batch_size").get<int64_t>() / before * steps;
    patch["accelerator_gradient_accumulation_steps"] = steps;
  }
  return patch;
}

inline size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t here = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] == b[j - 1] ? 0 : 1)});
      corner = row[j];
      row[j] = here;
    }
  }
  return row.back();
}

// A key that is one or two letters from one of DeepSpeed's is a misspelling.
inline json misspelt_keys_are_refused(const GoldenCase& golden) {
  if (golden.family != "ds_resolved") return {};
  for (const auto& [name, value] : golden.input.at("config").items()) {
    if (plan::find_deepspeed_key(name) != nullptr) continue;
    for (const auto& known : plan::deepspeed_key_names("")) {
      if (distance(name, known) <= 2) return {{"error", "UsageError"}};
    }
  }
  return {};
}

// "1", "yes" and the like are true here as everywhere; to Accelerate, "true" alone is.
inline json saving_takes_every_spelling_of_true(const GoldenCase& golden) {
  if (golden.family != "ds_plugin") return {};
  const std::string name = "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL";
  const auto env = golden.input.value("env", json::object());
  const auto args = golden.input.value("args", json::object());
  if (!env.contains(name) || args.contains("zero3_save_16bit_model") || golden.expected.contains("error")) return {};
  const std::string word = upper_text(env[name]);
  for (const char* no : {"", "FALSE", "F", "NO", "N", "OFF", "0"}) {
    if (word == no) return {};
  }
  for (const char* yes : {"TRUE", "T", "YES", "Y", "ON", "1"}) {
    if (word != yes) continue;
    json patch = {{"attributes", golden.expected.at("attributes")}, {"config", golden.expected.at("config")}};
    patch["attributes"]["zero3_save_16bit_model"] = true;
    if (!args.contains("hf_ds_config"))
      patch["config"]["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = true;
    return patch;
  }
  return {{"error", "UsageError"}};
}

// DeepSpeed clips at 1.0 where nothing is written; see auto-clips-at-one.
inline json nothing_is_clipped_by_default(const GoldenCase& golden) {
  if (golden.family != "ds_defaults" || !golden.expected.contains("gradient_clipping")) return {};
  return {{"gradient_clipping", 0.0}};
}

inline json counts_in_scientific_notation(const GoldenCase& golden) {
  const auto env = golden.input.value("env", json::object());
  const std::string text = env.value("FSDP_MIN_NUM_PARAMS", "");
  if (!golden.expected.contains("error") || text.find_first_of("eE") == std::string::npos) return {};
  const double value = std::strtod(text.c_str(), nullptr);
  if (value != std::floor(value)) return {};
  return {{"min_num_params", static_cast<int64_t>(value)}};
}

inline void add_differences(GoldenTopic& topic) {
  topic.on_quirk("strategy-ignored-in-version-2", strategy_counts_in_version_2);
  topic.on_quirk("strategy-breaks-version-2", strategy_counts_in_version_2);
  topic.on_quirk("reshard-ignored-in-version-1", resharding_names_a_strategy_in_version_1);
  topic.on_quirk("bad-value-accepted", refused);
  topic.on_quirk("names-not-trimmed", names_are_trimmed);
  topic.on_quirk("strategy-number-kept", strategies_become_flags);
  topic.on_quirk("small-letters-kept", strategies_become_flags);
  topic.on_quirk("auto-clips-at-one", only_what_is_written);
  topic.on_quirk("accumulation-overruled", only_what_is_written);
  topic.on_quirk("unknown-key-accepted", misspelt_keys_are_refused);
  topic.on_quirk("section-without-type-ignored", refused);
  topic.on_every_case(counts_in_scientific_notation);
  topic.on_every_case(resharding_argument_names_a_strategy);
  topic.on_every_case(empty_pattern_ignores_nothing);
  topic.on_every_case(saving_takes_every_spelling_of_true);
  topic.on_every_case(nothing_is_clipped_by_default);
}

}  // namespace hasten::testing::sharding_config
