// See unknown_words.h. The program's own reading of these words is in settings/fsdp_plugin.
#include "hasten/launch/plan/unknown_words.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/settings/fsdp_names.h"

namespace hasten::launcher {
namespace {

struct Words {
  const char* setting;
  std::vector<std::string> names;
  int64_t most = 0;          ///< numbers from 1 to it stand for the names, none if it is 0
  bool takes_flags = false;  ///< true and false have a meaning, too
};

std::vector<Words> settings_with_words() {
  std::vector<std::string> prefetches = plan::fsdp_prefetch_names();
  prefetches.push_back("NO_PREFETCH");
  return {{"fsdp_sharding_strategy", plan::fsdp_strategy_names(), 5},
          {"fsdp_reshard_after_forward", plan::fsdp_strategy_names(), 5, true},
          {"fsdp_auto_wrap_policy", plan::fsdp_wrap_names()},
          {"fsdp_backward_prefetch", std::move(prefetches), 2},
          {"fsdp_state_dict_type", plan::fsdp_state_names(), 3}};
}

bool has_meaning(const Words& words, const std::string& given) {
  // torch spells one strategy with an underscore in front.
  const std::string upper = core::upper(given), word = upper == "_HYBRID_SHARD_ZERO2" ? upper.substr(1) : upper;
  if (std::find(words.names.begin(), words.names.end(), word) != words.names.end()) return true;
  if (words.takes_flags && core::parse_flag(given)) return true;
  const auto number = core::whole_number<int64_t>(given);
  return number && *number >= 1 && *number <= words.most;
}

}  // namespace

std::vector<std::string> unknown_words(const LaunchSettings& settings) {
  std::vector<std::string> problems;
  // Text that is no file may be the configuration itself, in base64.
  const std::string file = settings.text("deepspeed_config_file").value_or("");
  if (settings.on("use_deepspeed") && (file.ends_with(".json") || file.find('/') != std::string::npos) &&
      !std::filesystem::exists(file)) {
    problems.push_back(text("deepspeed_config_file '", file, "' does not exist; correct the path"));
  }
  for (const Words& words : settings_with_words()) {
    const Setting& setting = settings.of(words.setting);
    // A variable of the surroundings is the program's alone.
    const bool is_given = setting.source == Source::kOption || setting.source == Source::kConfig;
    if (!is_given || setting.values.empty() || has_meaning(words, setting.values.back())) continue;
    const std::string& given = setting.values.back();
    const std::string name =
        setting.source == Source::kOption ? text("--", words.setting) : text(words.setting, " (", setting.origin, ")");
    problems.push_back(text(name, ": '", given, "' is not one of ", words.takes_flags ? "true, false, " : "",
                            join(words.names), did_you_mean(core::upper(given), words.names)));
  }
  return problems;
}

std::vector<std::string> options_without_effect(const LaunchSettings& settings) {
  struct Group {
    const char* section;
    const char* requirement;
    bool is_on;
  };
  const std::vector<Group> groups = {
      {"deepspeed_config", "--use_deepspeed", settings.on("use_deepspeed")},
      {"fsdp_config", "--use_fsdp", settings.on("use_fsdp")},
      {"megatron_lm_config", "--use_megatron_lm", settings.on("use_megatron_lm")},
      {"parallelism_config", "--use_parallelism_config", settings.on("use_parallelism_config")},
      {"fp8_config", "--mixed_precision fp8", settings.text("mixed_precision") == "fp8"}};
  std::vector<std::string> notes;
  for (const Group& group : groups) {
    if (group.is_on) continue;
    std::vector<std::string> names;
    for (const Setting& setting : settings.all()) {
      if (setting.source == Source::kOption && setting.option->section == group.section)
        names.push_back(text("--", setting.option->name));
    }
    if (names.empty()) continue;
    notes.push_back(
        text(join(names), names.size() == 1 ? " has" : " have", " no effect without ", group.requirement, "."));
  }
  return notes;
}

}  // namespace hasten::launcher
