// Accelerate's configuration files (golden topic config_yaml): what is read from them, what is written back,
// where they lie.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/launch/config/config_file.h"
#include "launch/golden_support.h"
#include "support/golden.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;
using hasten::testing::golden_error;
using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using nlohmann::json;

json to_golden(const core::Value& value) {
  if (value.is_number() && !value.is_int() && !std::isfinite(value.as_double())) {
    const double number = value.as_double();
    return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  }
  if (value.is_list()) {
    json array = json::array();
    for (const core::Value& element : value.as_list()) array.push_back(to_golden(element));
    return array;
  }
  if (value.is_map()) {
    json object = json::object();
    for (const auto& [key, element] : value.as_map()) object[key] = to_golden(element);
    return object;
  }
  return json::parse(value.to_json());
}

// A folder that is gone at the end of the test.
class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "hasten_config_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& content) const {
    const fs::path path = fs::path(path_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string content_of(const json& input) {
  if (input.contains("text")) return input.at("text");
  const std::string hex = input.at("bytes_hex");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

json read_and_write(const GoldenCase& golden) {
  const Folder folder;
  // A case without contents is about a file that is not there.
  const bool is_there = golden.input.contains("text") || golden.input.contains("bytes_hex");
  const std::string path = is_there ? folder.write(golden.input.at("file"), content_of(golden.input))
                                    : folder.path() + "/" + golden.input.at("file").get<std::string>();
  try {
    const Config config = load_config(path);
    const std::string yaml = to_yaml(config.values);
    const Config again = load_config(folder.write("again.yaml", yaml));
    const json values = to_golden({config.values});
    return {{"class", config.sagemaker ? "SageMakerConfig" : "ClusterConfig"},
            {"config", values},
            {"yaml", yaml},
            {"reload_same", to_golden({again.values}) == values}};
  } catch (const UsageError&) {
    return {{"error", golden.expected.value("error", "UsageError")}};
  }
}

// `no` without quotes is NO where NO is a value (docs/differences.md): the peer's result with that put right.
json no_is_no(const GoldenCase& golden) {
  json wanted = golden.expected;
  if (wanted.contains("error")) return wanted;
  const auto mend = [&](const std::string& from, const std::string& to) {
    wanted["yaml"] = replace_all(wanted["yaml"], from, to);
  };
  json& config = wanted["config"];
  if (config.value("mixed_precision", json()) == false) {
    config["mixed_precision"] = "no";
    mend("mixed_precision: false", "mixed_precision: 'no'");
  }
  if (config.value("distributed_type", json()) == false) {
    config["distributed_type"] = "NO";
    mend("distributed_type: false", "distributed_type: 'NO'");
    if (config.value("num_processes", json()) == -1) {
      config["num_processes"] = 1;
      mend("num_processes: -1", "num_processes: 1");
    }
  }
  if (config.contains("dynamo_config") && config["dynamo_config"].value("dynamo_backend", json()) == false) {
    config.erase("dynamo_config");
    mend("dynamo_config:\n  dynamo_backend: false\n", "");
  }
  return wanted;
}

// SageMaker without a distribution is allowed: Accelerate's defaults and what the file gives, key by key.
json sagemaker_alone(const GoldenCase& golden) {
  json config = {{"compute_environment", "AMAZON_SAGEMAKER"},
                 {"distributed_type", "NO"},
                 {"use_cpu", false},
                 {"debug", false},
                 {"region", "us-east-1"},
                 {"num_machines", 1},
                 {"gpu_ids", "all"},
                 {"base_job_name", "accelerate-sagemaker-1"},
                 {"pytorch_version", "1.10.2"},
                 {"transformers_version", "4.17.0"},
                 {"py_version", "py38"},
                 {"enable_cpu_affinity", false}};
  std::istringstream lines(golden.input.at("text").get<std::string>());
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, colon);
    const std::string value = replace_all(replace_all(line.substr(colon + 2), "'", ""), "\"", "");
    const bool is_quoted = line.substr(colon + 2).starts_with("'") || line.substr(colon + 2).starts_with("\"");
    if (key == "distributed_type") continue;
    if (value == "null" && !is_quoted) continue;
    if (!is_quoted && (value == "true" || value == "false")) {
      config[key] = value == "true";
    } else if (config.contains(key) && config[key].is_number()) {
      config[key] = std::stoi(value);
    } else {
      config[key] = value;
    }
  }
  return {{"class", "SageMakerConfig"}, {"config", config}};
}

std::string with_stand_ins(std::string path, const std::string& root) {
  return replace_all(std::move(path), root, "");
}

json locate(const GoldenCase& golden) {
  const Folder folder;
  const auto placed = [&](const std::string& text) {
    return replace_all(replace_all(text, "<tmp>", folder.path() + "/tmp"), "<home>", folder.path() + "/home");
  };
  const auto shown = [&](const std::string& text) {
    return replace_all(replace_all(text, folder.path() + "/tmp", "<tmp>"), folder.path() + "/home", "<home>");
  };
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : golden.input.at("environment").items()) {
    if (!value.is_null()) variables[name] = placed(value);
  }
  if (golden.input.contains("file")) {
    const std::string path = placed(golden.input.at("file").at("path"));
    folder.write(with_stand_ins(path, folder.path() + "/"), golden.input.at("file").at("text"));
  }
  const auto environment = Environment::of(variables);
  const std::string path = default_config_path(environment);
  // The peer's two default files are one and the same.
  json given = {{"cache_dir", shown(config_folder(environment))},
                {"default_yaml_config_file", shown(path)},
                {"default_json_config_file", shown(path)},
                {"default_config_file", shown(path)}};
  try {
    given["loaded"] = to_golden({load_config(path).values});
  } catch (const UsageError&) {
    given["load_error"] = golden.expected.value("load_error", "UsageError");
  }
  return given;
}

// A variable that is empty counts as unset: the places without it.
json without_empty_variables(const GoldenCase& golden) {
  const json& variables = golden.input.at("environment");
  const std::string xdg =
      variables.value("XDG_CACHE_HOME", json("")).is_string() ? variables.value("XDG_CACHE_HOME", "") : "";
  const std::string hub = variables.value("HF_HOME", json("")).is_string() ? variables.value("HF_HOME", "") : "";
  // Joins as Python does: one slash between the two, and ~ is the home.
  const auto below = [](std::string path, const char* name) {
    if (path.starts_with("~")) path.replace(0, 1, "<home>");
    return path + (path.ends_with("/") ? "" : "/") + name;
  };
  const std::string folder =
      below(hub.empty() ? below(xdg.empty() ? "~/.cache" : xdg, "huggingface") : hub, "accelerate");
  json wanted = {{"cache_dir", folder}};
  for (const char* key : {"default_yaml_config_file", "default_json_config_file", "default_config_file"}) {
    wanted[key] = folder + "/default_config.yaml";
  }
  return wanted;
}

json write_basic(const GoldenCase& golden) {
  std::string precision = golden.input.at("mixed_precision");
  std::transform(precision.begin(), precision.end(), precision.begin(), ::tolower);
  const Folder folder;
  try {
    return {{"text", to_json(basic_config(precision, /*num_gpus=*/0).values)}};
  } catch (const UsageError&) {
    return {{"error", golden.expected.value("error", "UsageError")}};
  }
}

// Sections take the keys of their options alone; the peer takes any. One-letter keys are no option's.
json unknown_keys_of_sections(const GoldenCase& golden) {
  const json config = golden.expected.value("config", json::object());
  const auto section = config.find("deepspeed_config");
  if (section == config.end() || !section->is_object()) return json::object();
  for (const auto& [key, value] : section->items()) {
    if (key.size() == 1) return refused(golden);
  }
  return json::object();
}

TEST(ConfigFileGolden, ReadsWritesAndFindsFilesAsAccelerateDoes) {
  GoldenTopic topic("config_yaml");
  topic.on_quirk("types-not-checked", refused);
  topic.on_quirk("duplicate-keys-accepted", refused);
  topic.on_quirk("bad-value-accepted", refused);
  topic.on_quirk("unquoted-no-is-false", no_is_no);
  topic.on_quirk("sagemaker-without-distribution-fails", sagemaker_alone);
  topic.on_quirk("empty-variable-is-used", without_empty_variables);
  topic.on_every_case(unknown_keys_of_sections);

  topic.for_each([&](const GoldenCase& golden) {
    if (golden.family == "location") {
      topic.judge(golden, [&] { return locate(golden); });
    } else if (golden.family == "write_basic") {
      topic.judge(golden, [&] { return write_basic(golden); });
    } else {
      topic.judge(golden, [&] { return read_and_write(golden); });
    }
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::launcher
