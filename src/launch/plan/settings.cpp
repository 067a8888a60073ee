// Choosing each setting's value; see settings.h.
#include "hasten/launch/plan/settings.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "hasten/launch/config/config_value.h"

namespace hasten::launcher {
namespace {

using core::Value;

// The value in the form of problem_with and the peers. A switch is True or False. A choice is spelt as in the table
// (configuration files have INDUCTOR and TE).
std::string normal_form(const Option& option, const std::string& value) {
  if (option.kind == OptionKind::kSwitch) {
    const auto flag = core::parse_flag(value);
    return !flag ? value : *flag ? "True" : "False";
  }
  if (option.kind == OptionKind::kChoice) {
    for (const std::string& choice : choices_of(option)) {
      if (core::lower(choice) == core::lower(value)) return choice;
    }
  }
  return value;
}

std::string problem_with_switch(const Option& option, const std::string& value) {
  if (option.kind != OptionKind::kSwitch || value == "True" || value == "False") return "";
  return text("'", value, "' is neither true nor false");
}

// The value of an option in the file.
const Value* value_in(const Config& config, const Option& option) {
  if (option.section.empty()) return config.values.find(option.key);
  const Value* section = config.values.find(option.section);
  if (section == nullptr) return nullptr;
  for (const std::string& key : keys_of(option)) {
    if (const Value* value = section->find(key)) return value;
  }
  return nullptr;
}

bool is_multi_gpu(const std::string& type) {
  return type.starts_with("MULTI_") && type != "MULTI_CPU";
}

}  // namespace

std::vector<std::string> variables_of(const Option& option) {
  if (option.variable == "-") return {};
  std::vector<std::string> names;
  std::istringstream words{std::string(option.variable)};
  for (std::string word; words >> word;) names.push_back(word);
  if (!names.empty()) return names;
  if (option.peers & kTorchrun) return {"PET_" + core::upper(option.name)};
  const bool as_named = option.section == "fsdp_config" || option.section == "megatron_lm_config" ||
                        option.section == "parallelism_config";
  if (as_named) return {core::upper(option.name)};
  if (option.section == "fp8_config") return {"ACCELERATE_" + core::upper(option.name)};
  return {};
}

LaunchSettings::LaunchSettings(const CommandLine& line, const Config* config, const Environment& environment)
    : problems_(line.problems), from_config_(config != nullptr) {
  if (config != nullptr) {
    on_sagemaker_ = config->sagemaker;
    distributed_type_ = python_text(config->values.at("distributed_type"));
    if (const Value* deepspeed = config->values.find("deepspeed_config")) {
      for (const auto& [key, value] : deepspeed->as_map()) deepspeed_keys_.push_back(key);
    }
  }
  for (const OptionGroup& group : launch_options()) {
    for (const Option& option : group.options) {
      Setting setting{.option = &option};
      if (!option.fallback.empty()) setting.values = {std::string(option.fallback)};
      take_environment(setting, environment);
      if (config != nullptr) take_config(setting, *config);
      const auto given = line.options.find(std::string(option.name));
      if (given != line.options.end()) take_option(setting, given->second);
      settings_.push_back(std::move(setting));
    }
  }
  if (config != nullptr) choose_paradigm(*config);
  if (on("no_tpu_cluster")) find("tpu_cluster").values.clear();
}

void LaunchSettings::take_option(Setting& setting, const GivenOption& given) {
  setting.values = given.values;
  setting.source = Source::kOption;
  setting.origin = "option " + given.written;
}

void LaunchSettings::came_from_file(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    find(name).source = Source::kConfig;
    find(name).origin = "configuration file";
  }
}

void LaunchSettings::take_config(Setting& setting, const Config& config) {
  const Option& option = *setting.option;
  const Value* value = option.key.empty() ? nullptr : value_in(config, option);
  if (value == nullptr || value->is_null()) return;
  if (option.name == "num_processes" && python_text(*value) == "-1") return;
  // Values that Accelerate fills in where the file has none are no choice of the user's.
  const Value* stated = option.section.empty() ? config.given.find(option.key) : value;
  if (stated == nullptr && !(option.name == "num_processes")) return;
  const std::string where = hasten::text(std::filesystem::path(config.path).filename().string(), ": ", option.section,
                                         option.section.empty() ? "" : ".", option.key);
  std::vector<std::string> values;
  if (value->is_list() && option.kind == OptionKind::kList) {
    for (const Value& element : value->as_list()) values.push_back(python_text(element));
  } else {
    values = {normal_form(option, python_text(*value))};
  }
  for (const std::string& one : values) {
    std::string problem = problem_with(option, one);
    if (problem.empty()) problem = problem_with_switch(option, one);
    if (!problem.empty()) problems_.push_back(hasten::text(where, ": ", problem));
  }
  setting.values = values;
  setting.source = Source::kConfig;
  setting.origin = where;
}

void LaunchSettings::take_environment(Setting& setting, const Environment& environment) {
  const Option& option = *setting.option;
  for (const std::string& variable : variables_of(option)) {
    const auto value = environment.text(variable);
    if (!value) continue;
    const std::string normal = normal_form(option, *value);
    std::string problem = problem_with(option, normal);
    if (problem.empty()) problem = problem_with_switch(option, normal);
    if (!problem.empty()) problems_.push_back(hasten::text(variable, ": ", problem));
    setting.values = {normal};
    setting.source = Source::kEnvironment;
    setting.origin = variable;
    return;
  }
}

void LaunchSettings::take(const Cluster& cluster) {
  for (const char* name : {"nnodes", "num_machines"}) {
    if (of(name).source == Source::kOption && text(name) == "1") return;  // each of them a run of its own
  }
  for (const FoundValue& found : cluster.values) take_found(found, cluster.name);
  if (!cluster.problem.empty()) problems_.push_back(cluster.problem);
}

void LaunchSettings::take_found(const FoundValue& found, const std::string& cluster) {
  static const std::map<std::string, std::string> accelerates_name = {{"nnodes", "num_machines"},
                                                                      {"node_rank", "machine_rank"},
                                                                      {"master_addr", "main_process_ip"},
                                                                      {"master_port", "main_process_port"}};
  const std::string& other_name = accelerates_name.at(found.option);
  Setting& mine = find(found.option);
  const Setting& other = of(other_name);
  const Setting& strongest = mine.source >= other.source ? mine : other;
  const std::string where = hasten::text(cluster, ": ", found.origin);
  if (strongest.source == Source::kDefault) {
    mine.values = {found.value};
    mine.source = Source::kCluster;
    mine.origin = where;
    return;
  }
  const bool counts = found.option == "nnodes" || found.option == "node_rank";
  if (strongest.source != Source::kConfig || !counts || strongest.values.back() == found.value) return;
  problems_.push_back(hasten::text(strongest.option->name, " is ", strongest.values.back(), " (", strongest.origin,
                                   "), but ", found.value, " (", where, "); take it out of the file, or give --",
                                   found.option));
}

// distributed_type of the file sets a switch, unless the command line chooses another way of training.
void LaunchSettings::choose_paradigm(const Config& config) {
  for (const char* name : {"cpu", "multi_gpu", "tpu", "tpu_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm"}) {
    if (of(name).source == Source::kOption) return;
  }
  const std::string file = std::filesystem::path(config.path).filename();
  const auto switch_on = [&](const char* name, const char* key) {
    Setting& setting = find(name);
    if (setting.source == Source::kOption) return;
    setting.values = {"True"};
    setting.source = Source::kConfig;
    setting.origin = hasten::text(file, ": ", key);
  };
  if (is_multi_gpu(distributed_type_)) switch_on("multi_gpu", "distributed_type");
  if (distributed_type_ == "DEEPSPEED") switch_on("use_deepspeed", "distributed_type");
  if (distributed_type_ == "FSDP") switch_on("use_fsdp", "distributed_type");
  if (distributed_type_ == "MEGATRON_LM") switch_on("use_megatron_lm", "distributed_type");
  if (distributed_type_ == "XLA") switch_on("tpu", "distributed_type");
  if (config.values.contains("parallelism_config")) {
    switch_on("use_parallelism_config", "parallelism_config");
  }
}

const Setting& LaunchSettings::of(std::string_view name) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [=](const Setting& setting) { return setting.option->name == name; });
  if (found == settings_.end()) throw InternalError({"launch"}, "there is no option '", name, "'.");
  return *found;
}

Setting& LaunchSettings::find(std::string_view name) {
  return const_cast<Setting&>(of(name));  // of a member of *this, which is not const here
}

std::optional<std::string> LaunchSettings::text(std::string_view name) const {
  const Setting& setting = of(name);
  if (setting.values.empty()) return std::nullopt;
  return setting.values.back();
}

std::optional<int64_t> LaunchSettings::integer(std::string_view name) const {
  const auto word = text(name);
  if (!word) return std::nullopt;
  int64_t number = 0;
  std::from_chars(word->data(), word->data() + word->size(), number);
  return number;
}

std::optional<double> LaunchSettings::real(std::string_view name) const {
  const auto word = text(name);
  if (!word) return std::nullopt;
  double number = 0;
  std::from_chars(word->data(), word->data() + word->size(), number);
  return number;
}

bool LaunchSettings::on(std::string_view name) const {
  const auto word = text(name);
  return word && core::parse_flag(*word).value_or(false);
}

}  // namespace hasten::launcher
