// See deepspeed_config.h.
#include "hasten/settings/deepspeed_config.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "hasten/core/base64.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "settings/deepspeed_keys.h"
#include "settings/origin.h"
#include "settings/relaxed_json.h"

namespace hasten::plan {
namespace {

using core::Value;

bool is_auto_text(const Value& value) {
  return value.is_string() && value.as_string() == "auto";
}

// Where "auto" is a value of its own, that nothing fills.
bool means_auto(const std::string& key) {
  const auto* known = find_deepspeed_key(key);
  return known != nullptr && std::string_view(known->otherwise) == "\"auto\"";
}

bool same_value(const Value& a, const Value& b) {
  return a.is_number() && b.is_number() ? a.as_double() == b.as_double() : a == b;
}

Value map_of(Value value, const std::string& source) {
  if (value.is_map()) return value;
  throw UsageError(kDeepSpeed, source, " is ", value.to_json(), "; expected a map of settings.");
}

void visit(Value& node, const std::string& prefix, const std::function<void(const std::string&)>& leaf) {
  // By index: leaves are replaced while they are visited.
  for (size_t i = 0; i < node.as_map().size(); ++i) {
    auto& [key, value] = node.as_map()[i];
    if (value.is_map()) {
      visit(value, prefix + key + ".", leaf);
    } else {
      leaf(prefix + key);
    }
  }
}

}  // namespace

DeepSpeedConfig::DeepSpeedConfig(Value config, std::string source)
    : config_(map_of(std::move(config), source)), source_(std::move(source)) {}

DeepSpeedConfig DeepSpeedConfig::read(const Value& config) {
  if (config.is_map()) return DeepSpeedConfig(config);
  if (!config.is_string()) {
    throw UsageError(kDeepSpeed, "hf_ds_config is ", config.to_json(),
                     "; expected a file, a map, JSON text or base64 of it.");
  }
  const std::string& text = config.as_string();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(text, ignored)) {
    const auto content = core::read_file(text);
    if (!content) throw DataError(kDeepSpeed, text, "cannot read ", text, ".");
    return DeepSpeedConfig(parse_relaxed_json(*content, text), text);
  }
  if (core::trim(text).starts_with('{'))
    return DeepSpeedConfig(parse_relaxed_json(text, "the DeepSpeed configuration"));
  const auto decoded = from_base64(text);
  if (decoded && decoded->find('{') != std::string::npos) {
    return DeepSpeedConfig(parse_relaxed_json(*decoded, "the DeepSpeed configuration (base64)"));
  }
  throw UsageError(kDeepSpeed, "hf_ds_config is '", text.substr(0, 200),
                   "', which is no file, no JSON text and no base64 of it. Give the path of "
                   "a file that exists, or JSON.");
}

std::pair<Value*, std::string> DeepSpeedConfig::find_config_node(const std::string& key) {
  auto parts = core::split(key, '.');
  if (parts.empty()) return {nullptr, key};
  const std::string last = parts.back();
  parts.pop_back();
  Value* node = &config_;
  for (const auto& part : parts) {
    node = node->find(part);
    if (node == nullptr || !node->is_map()) return {nullptr, last};
  }
  return {node, last};
}

const Value* DeepSpeedConfig::find(const std::string& key) const {
  const Value* node = &config_;
  for (const auto& part : core::split(key, '.')) {
    node = node->find(part);
    if (node == nullptr) return nullptr;
  }
  return node;
}

Value DeepSpeedConfig::get_value(const std::string& key, Value otherwise) const {
  const auto* found = find(key);
  return found == nullptr ? otherwise : *found;
}

bool DeepSpeedConfig::is_auto(const std::string& key) const {
  const auto* found = find(key);
  return found != nullptr && is_auto_text(*found);
}

bool DeepSpeedConfig::is_true(const std::string& key) const {
  const auto* found = find(key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

bool DeepSpeedConfig::is_false(const std::string& key) const {
  const auto* found = find(key);
  return found != nullptr && found->is_bool() && !found->as_bool();
}

bool DeepSpeedConfig::is_zero2() const {
  return same_value(get_value("zero_optimization.stage"), 2);
}
bool DeepSpeedConfig::is_zero3() const {
  return same_value(get_value("zero_optimization.stage"), 3);
}

bool DeepSpeedConfig::is_offload() const {
  if (!is_zero2() && !is_zero3()) return false;
  for (const char* key : {"zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"}) {
    const Value device = get_value(key);
    if (device == Value("cpu") || device == Value("nvme")) return true;
  }
  return false;
}

void DeepSpeedConfig::del_config_sub_tree(const std::string& key, bool must_exist) {
  const auto [node, last] = find_config_node(key);
  if (node != nullptr && node->erase(last)) return;
  if (must_exist) throw UsageError(kDeepSpeed, source_, " has no ", key, ", which was to be removed.");
}

void DeepSpeedConfig::fill_match(const std::string& key, const Values& values, std::vector<std::string>& mismatches,
                                 bool must_match) {
  const auto [node, last] = find_config_node(key);
  if (node == nullptr) return;
  auto* own = node->find(last);
  if (own == nullptr || means_auto(key)) return;
  const auto given = std::find_if(values.begin(), values.end(), [&](const auto& each) { return each.first == key; });
  if (is_auto_text(*own)) {
    if (given == values.end()) {
      throw UsageError(kDeepSpeed, key, " is \"auto\" in ", source_, ", and no value for it is known. Write a value.");
    }
    *own = given->second;
  } else if (must_match && given != values.end() && !own->is_null() && !same_value(*own, given->second)) {
    mismatches.push_back(hasten::text(key, " is ", own->to_json(), " in ", source_, " and ", given->second.to_json(),
                                      " in the program"));
  }
}

void DeepSpeedConfig::process(const Values& values, bool must_match) {
  std::vector<std::string> mismatches;
  visit(config_, "", [&](const std::string& key) { fill_match(key, values, mismatches, must_match); });
  if (mismatches.empty()) return;
  throw UsageError(kDeepSpeed, "values that contradict each other: ", join(mismatches, "; "),
                   ". Write \"auto\" in the file, or leave one out.");
}

void DeepSpeedConfig::fill(const Values& values) {
  for (const auto& [key, value] : values) {
    const auto [node, last] = find_config_node(key);
    if (node != nullptr && is_auto(key)) (*node)[last] = value;
  }
}

std::vector<std::string> DeepSpeedConfig::auto_keys() const {
  std::vector<std::string> keys;
  auto copy = *this;
  visit(copy.config_, "", [&](const std::string& key) {
    if (is_auto(key) && !means_auto(key)) keys.push_back(key);
  });
  return keys;
}

BatchNumbers solve_batch(std::optional<int64_t> train, std::optional<int64_t> micro,
                         std::optional<int64_t> accumulation, int world_size) {
  if (world_size < 1) throw UsageError(kDeepSpeed, "world_size = ", world_size, "; expected at least 1.");
  const int64_t world = world_size;
  if (train && micro && !accumulation && *micro != 0) accumulation = *train / *micro / world;
  if (train && !micro) {
    if (!accumulation) accumulation = 1;
    micro = *accumulation == 0 ? 0 : *train / world / *accumulation;
  }
  if (micro && !train) {
    if (!accumulation) accumulation = 1;
    train = *micro * *accumulation * world;
  }
  if (!train || !micro || !accumulation) {
    throw UsageError(
        kDeepSpeed,
        "no batch size is known; expected train_batch_size or train_micro_batch_size_per_gpu. Write one, or "
        "prepare a loader with a batch size.");
  }
  const BatchNumbers numbers{*train, *micro, *accumulation};
  const bool fits = numbers.train > 0 && numbers.micro > 0 && numbers.accumulation > 0 &&
                    numbers.train == numbers.micro * numbers.accumulation * world;
  if (!fits) {
    throw UsageError(
        kDeepSpeed, "train_batch_size ", numbers.train, " is not train_micro_batch_size_per_gpu ", numbers.micro,
        " x gradient_accumulation_steps ", numbers.accumulation, " x ", world,
        " processes, or one of them is not above 0. Write two of the three numbers, and \"auto\" for the third.");
  }
  return numbers;
}

}  // namespace hasten::plan
