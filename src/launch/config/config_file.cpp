// Finding, reading, completing and writing configuration files; see config_file.h.
#include "hasten/launch/config/config_file.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/launch/config/config_value.h"
#include "hasten/launch/options/command_line.h"
#include "launch/config/config_keys.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;
using core::Value;

std::string home_of(const std::string& user, const Environment& environment) {
  if (user.empty() && environment.has("HOME")) return *environment.text("HOME");
  const passwd* entry = user.empty() ? getpwuid(getuid()) : getpwnam(user.c_str());
  return entry == nullptr ? "~" + user : entry->pw_dir;
}

std::string with_home(const std::string& path, const Environment& environment) {
  if (!path.starts_with("~")) return path;
  const size_t slash = std::min(path.find('/'), path.size());
  return home_of(path.substr(1, slash - 1), environment) + path.substr(slash);
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder.ends_with("/") ? folder + name : folder + "/" + name;
}

std::string content_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    throw UsageError({"config"}, "the configuration file '", path, "' is a folder. Name a file in it.");
  if (!fs::is_regular_file(path, ignored)) {
    throw UsageError({"config"}, "the configuration file '", path,
                     "' does not exist. Write one with hasten config, or name another with --config_file.");
  }
  auto content = core::read_file(path);
  if (!content) throw UsageError({"config"}, "the configuration file '", path, "' cannot be read. Check its mode.");
  return *std::move(content);
}

// `no` without quotes is false in YAML; where NO is a value, that is meant.
void mend_unquoted_no(Value& map, std::string_view key, const char* no) {
  if (Value* value = map.find(key); value != nullptr && *value == false) *value = no;
}

// true, "true", "yes" and any number but 0.
bool is_on(const Value& value) {
  if (value.is_int()) return value.as_int() != 0;
  return value == true || (value.is_string() && plain_scalar(value.as_string()) == true);
}

// Keys of older versions in the form of today's.
void modernise(Value& map) {
  mend_unquoted_no(map, "distributed_type", "NO");
  mend_unquoted_no(map, "mixed_precision", "no");
  mend_unquoted_no(map, "dynamo_backend", "NO");
  if (const Value* fp16 = map.find("fp16")) {
    const bool on = is_on(*fp16);
    map.erase("fp16");
    if (on && !map.contains("mixed_precision")) map["mixed_precision"] = "fp16";
  }
  if (const Value* found = map.find("dynamo_backend")) {
    const Value backend = *found;
    map.erase("dynamo_backend");
    map["dynamo_config"] = backend == "NO" ? Value() : Value::map({{"dynamo_backend", backend}});
  }
}

// Mappings without entries become null, at any depth, but not those in lists.
Value without_empty_maps(Value value) {
  if (!value.is_map()) return value;
  if (value.empty()) return {};
  for (auto& [name, inner] : value.as_map()) inner = without_empty_maps(std::move(inner));
  return value;
}

// Form of a file that Accelerate writes: no nulls at the root, no empty mappings.
Value completed(const Value& given, bool sagemaker) {
  auto values = Value::map();
  for (const ConfigKey& key : config_keys(sagemaker)) {
    const Value* found = given.find(key.name);
    Value value = found == nullptr ? key.fallback : *found;
    const bool of_one = key.name == "num_processes" && found == nullptr;
    if (of_one && given.at("distributed_type") == "NO") value = 1;
    value = without_empty_maps(std::move(value));
    if (!value.is_null()) values[key.name] = std::move(value);
  }
  return values;
}

// compute_environment, and what must be there.
std::vector<std::string> missing_or_unknown(const Value& map, bool& sagemaker) {
  std::vector<std::string> problems;
  const Value* where = map.find("compute_environment");
  sagemaker = where != nullptr && *where == "AMAZON_SAGEMAKER";
  if (where != nullptr && !sagemaker && *where != "LOCAL_MACHINE") {
    const std::vector<std::string> choices = {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"};
    const std::string given = python_text(*where);
    problems.push_back(
        text("'compute_environment: ", given, "' is not one of ", join(choices), did_you_mean(given, choices)));
  }
  std::vector<std::string> needed = {"distributed_type"};
  if (sagemaker) needed.insert(needed.end(), {"ec2_instance_type", "iam_role_name"});
  for (const std::string& key : needed) {
    const Value* value = map.find(key);
    if (value == nullptr || value->is_null()) problems.push_back(text("'", key, "' is missing"));
  }
  return problems;
}

}  // namespace

std::string config_folder(const Environment& environment) {
  const std::string cache = environment.text("XDG_CACHE_HOME").value_or("~/.cache");
  const std::string hub = environment.text("HF_HOME").value_or(joined(cache, "huggingface"));
  return joined(with_home(hub, environment), "accelerate");
}

std::string default_config_path(const Environment& environment) {
  return config_folder(environment) + "/default_config.yaml";
}

Value read_config_map(const std::string& path) {
  const std::string content = content_of(path);
  Value read = path.ends_with(".json") ? read_json(content, path) : read_yaml(content, path);
  if (!read.is_map()) refuse_syntax(path, "it holds no mapping of keys to values");
  return read;
}

Config load_config(const std::string& path) {
  Config config{.path = path, .given = read_config_map(path)};
  modernise(config.given);
  std::vector<std::string> problems = missing_or_unknown(config.given, config.sagemaker);
  for (std::string& problem : config_problems(config.given, config.sagemaker)) problems.push_back(std::move(problem));
  if (!problems.empty()) {
    for (std::string& problem : problems) problem = path + ": " + problem;
    refuse("config", problems, "Correct the file, or write a new one with hasten config.");
  }
  config.values = completed(config.given, config.sagemaker);
  return config;
}

Config basic_config(const std::string& mixed_precision, int num_gpus) {
  static const std::vector<std::string> kChoices = {"no", "fp16", "bf16", "fp8"};
  if (std::find(kChoices.begin(), kChoices.end(), mixed_precision) == kChoices.end()) {
    throw UsageError({"config"}, "mixed_precision '", mixed_precision, "'", guess_end(mixed_precision, kChoices),
                     " Expected one of ", join(kChoices), '.');
  }
  Config config;
  config.given = Value::map({{"distributed_type", num_gpus > 1 ? "MULTI_GPU" : "NO"},
                             {"mixed_precision", mixed_precision},
                             {"num_processes", std::max(num_gpus, 1)},
                             {"use_cpu", num_gpus == 0}});
  config.values = completed(config.given, false);
  return config;
}

void write_config(const std::string& content, const std::string& path) {
  std::error_code ignored;
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder, ignored);
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) {
    throw UsageError({"config"}, "'", path, "' cannot be written. Check the folder, or name another file with ",
                     "--config_file.");
  }
}

void save_config(const Value& values, const std::string& path) {
  write_config(path.ends_with(".json") ? to_json(values) : to_yaml(values), path);
}

}  // namespace hasten::launcher
