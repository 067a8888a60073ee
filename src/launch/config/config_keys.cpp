// The table of config_keys.h, and the checks against it.
#include "launch/config/config_keys.h"

#include <algorithm>
#include <optional>

#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/launch/config/config_value.h"
#include "hasten/launch/options/option_table.h"

namespace hasten::launcher {
namespace {

using enum ConfigType;
using core::Value;

const std::vector<std::string> kPrecisions = {"no", "fp16", "bf16", "fp8"};

std::vector<ConfigKey> common_keys() {
  return {{"compute_environment", kText, "LOCAL_MACHINE"},
          {"distributed_type", kText, {}},
          {"mixed_precision", kText, {}},
          {"use_cpu", kFlag, false},
          {"debug", kFlag, false},
          {"enable_cpu_affinity", kFlag, false},
          {"dynamo_config", kMap, {}}};
}

std::vector<ConfigKey> with_common(std::vector<ConfigKey> keys) {
  for (ConfigKey& key : common_keys()) keys.push_back(std::move(key));
  return keys;
}

std::vector<ConfigKey> cluster_keys() {
  const std::string main = "main", on_one_port = "static";
  return with_common({{"num_processes", kInteger, -1, -1},
                      {"machine_rank", kInteger, 0},
                      {"num_machines", kInteger, 1, 1},
                      {"gpu_ids", kText, {}},
                      {"main_process_ip", kText, {}},
                      {"main_process_port", kInteger, {}},
                      {"rdzv_backend", kText, on_one_port},
                      {"same_network", kFlag, false},
                      {"main_training_function", kText, main},
                      {"fp8_config", kMap, {}},
                      {"deepspeed_config", kMap, {}},
                      {"fsdp_config", kMap, {}},
                      {"parallelism_config", kMap, {}},
                      {"megatron_lm_config", kMap, {}},
                      {"mpirun_config", kMap, {}},
                      {"downcast_bf16", kFlag, false},
                      {"tpu_name", kText, {}},
                      {"tpu_zone", kText, {}},
                      {"tpu_use_cluster", kFlag, false},
                      {"tpu_use_sudo", kFlag, false},
                      {"command_file", kText, {}},
                      {"commands", kList, {}},
                      {"tpu_vm", kList, {}},
                      {"tpu_env", kList, {}}});
}

std::vector<ConfigKey> sagemaker_keys() {
  const std::string region = "us-east-1", all = "all", job = "accelerate-sagemaker-1";
  const std::string pytorch = "1.10.2", transformers = "4.17.0", python = "py38";
  return with_common({{"ec2_instance_type", kText, {}},
                      {"iam_role_name", kText, {}},
                      {"image_uri", kText, {}},
                      {"profile", kText, {}},
                      {"region", kText, region},
                      {"num_machines", kInteger, 1, 1},
                      {"gpu_ids", kText, all},
                      {"base_job_name", kText, job},
                      {"pytorch_version", kText, pytorch},
                      {"transformers_version", kText, transformers},
                      {"py_version", kText, python},
                      {"sagemaker_inputs_file", kText, {}},
                      {"sagemaker_metrics_file", kText, {}},
                      {"additional_args", kMap, {}}});
}

bool is_flag_text(const std::string& text) {
  static const std::vector<std::string> words = {"yes", "no", "true", "false", "True", "False"};
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Quoted numbers and flags are read by their content, as Accelerate reads them.
std::string problem_with_integer(const ConfigKey& key, const Value& value, const std::string& shown) {
  const auto number = value.is_int()      ? std::optional(value.as_int())
                      : value.is_string() ? core::whole_number<int64_t>(value.as_string())
                                          : std::nullopt;
  if (!number) return shown + " is no whole number";
  if (*number < static_cast<int64_t>(key.least)) return text(shown, " is less than ", key.least);
  return key.name == "num_processes" && *number == 0 ? shown + " makes no run" : "";
}

std::string problem_with_value(const ConfigKey& key, const Value& value) {
  const std::string shown = text("'", key.name, ": ", python_text(value), "'");
  switch (key.type) {
    case kInteger:
      return problem_with_integer(key, value, shown);
    case kFlag:
      return value.is_bool() || (value.is_string() && is_flag_text(value.as_string()))
                 ? ""
                 : shown + " is neither true nor false";
    case kMap:
      return value.is_map() ? "" : text("'", key.name, "' is no mapping of keys to values");
    case kList:
      return value.is_list() ? "" : text("'", key.name, "' is no list");
    default:
      return value.is_string() ? "" : shown + " is no text; put it in quotes";
  }
}

// Keys whose values are a closed set.
std::string problem_with_choice(const std::string& name, const Value& value, bool sagemaker) {
  const bool is_type = name == "distributed_type";
  if (!value.is_string() || (!is_type && name != "mixed_precision")) return "";
  const std::vector<std::string>& choices = is_type ? distributed_types(sagemaker) : kPrecisions;
  const std::string& word = value.as_string();
  const std::string folded = is_type ? word : core::lower(word);
  if (std::find(choices.begin(), choices.end(), folded) != choices.end()) return "";
  return text("'", name, ": ", word, "' is not one of ", join(choices), did_you_mean(word, choices));
}

// A key that is none of `names`.
std::string unknown_key(const std::string& name, const std::string& shown, const std::vector<std::string>& names) {
  const std::string_view today = removed_name(name);
  if (!today.empty()) return text("unknown key '", shown, "'; ", today);
  return text("unknown key '", shown, "'", did_you_mean(name, names));
}

// Keys of the mappings whose entries are options. Other mappings (additional_args) take any key.
void check_section(const ConfigKey& section, const Value& map, std::vector<std::string>& problems) {
  std::vector<std::string> names;
  for (const OptionGroup& group : launch_options()) {
    for (const Option& option : group.options) {
      if (option.section == section.name) {
        for (std::string& name : keys_of(option)) names.push_back(std::move(name));
      }
    }
  }
  if (names.empty()) return;
  for (const auto& [name, value] : map.as_map()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      problems.push_back(unknown_key(name, section.name + "." + name, names));
  }
}

}  // namespace

const std::vector<ConfigKey>& config_keys(bool sagemaker) {
  static const std::vector<ConfigKey> cluster = cluster_keys(), cloud = sagemaker_keys();
  return sagemaker ? cloud : cluster;
}

const std::vector<std::string>& distributed_types(bool sagemaker) {
  static const std::vector<std::string> cluster = {
      "NO",        "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",  "MULTI_MUSA",
      "MULTI_XPU", "DEEPSPEED", "FSDP",      "XLA",       "MULTI_HPU", "MEGATRON_LM", "MULTI_NEURON"};
  static const std::vector<std::string> cloud = {"NO", "DATA_PARALLEL", "MODEL_PARALLEL"};
  return sagemaker ? cloud : cluster;
}

std::vector<std::string> config_problems(const Value& values, bool sagemaker) {
  std::vector<std::string> problems, names;
  for (const ConfigKey& key : config_keys(sagemaker)) names.push_back(key.name);
  for (const auto& [name, value] : values.as_map()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      problems.push_back(unknown_key(name, name, names));
    }
  }
  for (const ConfigKey& key : config_keys(sagemaker)) {
    const Value* value = values.find(key.name);
    if (value != nullptr && value->is_map()) check_section(key, *value, problems);
  }
  for (const ConfigKey& key : config_keys(sagemaker)) {
    const Value* value = values.find(key.name);
    if (value == nullptr || value->is_null()) continue;
    std::string problem = problem_with_value(key, *value);
    if (problem.empty()) problem = problem_with_choice(key.name, *value, sagemaker);
    if (!problem.empty()) problems.push_back(problem);
  }
  return problems;
}

}  // namespace hasten::launcher
