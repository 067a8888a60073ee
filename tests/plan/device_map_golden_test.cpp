// Device maps, sizes and limits, as Accelerate computes them (device_map.json).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "hasten/core/error.h"
#include "hasten/plan/device_map.h"
#include "hasten/plan/memory_size.h"
#include "support/golden.h"

namespace hasten::testing {
namespace {

using nlohmann::json;

std::map<std::string, plan::ModuleTree> golden_trees() {
  std::ifstream file(golden_folder() + "/device_map.json");
  const json content = json::parse(file);
  std::map<std::string, plan::ModuleTree> trees;
  for (const auto& [name, tree] : content.at("models").items()) {
    trees[name] = plan::ModuleTree::from_json(core::Value::parse_json(tree.dump()));
  }
  return trees;
}

plan::Device golden_device(const json& value) {
  return value.is_number() ? plan::Device(value.get<int>()) : plan::Device(value.get<std::string>());
}

json device_json(const plan::Device& device) {
  if (const int* index = std::get_if<int>(&device)) return *index;
  return std::get<std::string>(device);
}

plan::Bytes golden_bytes(const json& value) {
  return value.is_number() ? plan::Bytes(value.get<int64_t>()) : plan::Bytes(value.get<std::string>());
}

plan::MemoryLimits golden_limits(const json& list) {
  plan::MaxMemory limits;
  for (const auto& item : list) limits.emplace_back(golden_device(item.at(0)), golden_bytes(item.at(1)));
  return plan::memory_limits(limits);
}

std::vector<std::string> golden_classes(const json& input) {
  const json classes = input.value("no_split_module_classes", json());
  if (classes.is_null()) return {};
  return classes.is_string() ? std::vector<std::string>{classes} : classes.get<std::vector<std::string>>();
}

plan::SizeOptions golden_size_options(const json& input) {
  plan::SizeOptions options;
  if (input.contains("dtype") && !input["dtype"].is_null()) options.dtype = input["dtype"];
  if (input.contains("special_dtypes") && !input["special_dtypes"].is_null())
    options.special_dtypes = input["special_dtypes"];
  options.buffers_only = input.value("buffers_only", false);
  return options;
}

plan::DeviceMap golden_map(const json& value) {
  plan::DeviceMap map;
  for (const auto& [name, device] : value.items()) map.set(name, golden_device(device));
  return map;
}

json map_json(const plan::DeviceMap& map) {
  json out = json::object();
  for (const auto& [name, device] : map.entries()) out[name] = device_json(device);
  return out;
}

json limits_json(const plan::MemoryLimits& limits) {
  json out = json::array();
  for (const auto& [device, bytes] : limits.entries) out.push_back({device_json(device), bytes});
  return out;
}

// Every parameter has a device, tied ones the same, and no device has more than its limit. Counted here again, from the
// map.
bool is_sound(const plan::ModuleTree& tree, const plan::DeviceMap& map, const plan::MemoryLimits& limits,
              const plan::SizeOptions& options) {
  const auto sizes = plan::compute_module_sizes(tree, options);
  std::map<int64_t, plan::Device> by_tensor;
  std::map<std::string, double> used;
  for (const auto& item : tree.all_parameters()) {
    const auto* device = map.device_of(item.name);
    if (device == nullptr) return false;
    const auto [place, is_new] = by_tensor.try_emplace(item.tensor->identity, *device);
    if (!is_new && place->second != *device) return false;
    if (is_new) used[plan::device_text(*device)] += sizes.at(item.name);
  }
  for (const auto& [device, limit] : limits.entries) {
    if (device != plan::Device("disk") && used[plan::device_text(device)] > limit) return false;
  }
  return true;
}

json infer_result(const plan::ModuleTree& tree, const json& input) {
  plan::InferOptions options;
  options.no_split_module_classes = golden_classes(input);
  options.sizes = golden_size_options(input);
  options.clean_result = input.value("clean_result", true);
  options.offload_buffers = input.value("offload_buffers", false);
  options.fallback_allocation = input.value("fallback_allocation", false);
  const auto limits = golden_limits(input.at("max_memory"));
  const auto inferred = plan::infer_auto_device_map(tree, limits, options);
  return {{"device_map", map_json(inferred.device_map)},
          {"warns_buffers", inferred.warns_buffers},
          {"sound", is_sound(tree, inferred.device_map, limits, options.sizes)}};
}

json balanced_result(const plan::ModuleTree& tree, const json& input) {
  plan::BalanceOptions options{golden_classes(input), golden_size_options(input), input.value("low_zero", false),
                               false};
  return {{"max_memory", limits_json(plan::balanced_memory(tree, golden_limits(input.at("max_memory")), options))}};
}

json sizes_result(const plan::ModuleTree& tree, const json& input) {
  json by_name = json::object();
  const auto sizes = plan::compute_module_sizes(tree, golden_size_options(input));
  for (const auto& [name, bytes] : sizes.entries()) by_name[name] = bytes;
  return {{"sizes", by_name}};
}

json maximum_result(const plan::ModuleTree& tree, const json& input) {
  const auto sizes = plan::calculate_maximum_sizes(tree, golden_classes(input));
  return {{"total", sizes.total}, {"largest", sizes.largest.bytes}, {"layers", sizes.largest.names}};
}

json check_result(const plan::ModuleTree& tree, const json& input) {
  const auto map = golden_map(input.at("device_map"));
  plan::check_device_map(tree, map);
  return {{"ok", true}, {"warns_unknown_keys", !plan::examine_device_map(tree, map).unknown_modules.empty()}};
}

json result_of(const GoldenCase& golden, const std::map<std::string, plan::ModuleTree>& trees) {
  const json& input = golden.input;
  const auto tree = [&] { return trees.at(input.at("model").get<std::string>()); };
  if (golden.family == "infer") return infer_result(tree(), input);
  if (golden.family == "balanced") return balanced_result(tree(), input);
  if (golden.family == "sizes") return sizes_result(tree(), input);
  if (golden.family == "tied") return {{"groups", plan::find_tied_parameters(tree())}};
  if (golden.family == "max") return maximum_result(tree(), input);
  if (golden.family == "file_size") return {{"bytes", plan::parse_bytes(golden_bytes(input.at("size")))}};
  if (golden.family == "dtype_size") return {{"bytes", plan::dtype_byte_size(input.at("dtype").get<std::string>())}};
  if (golden.family == "max_memory") return {{"max_memory", limits_json(golden_limits(input.at("max_memory")))}};
  if (golden.family == "check") return check_result(tree(), input);
  if (golden.family == "clean")
    return {{"device_map", map_json(plan::clean_device_map(golden_map(input.at("device_map"))))}};
  return {{"unknown family", golden.family}};
}

json judged_result(const GoldenCase& golden, const std::map<std::string, plan::ModuleTree>& trees) {
  try {
    return result_of(golden, trees);
  } catch (const Error&) {
    return golden_error("ValueError");
  } catch (const std::exception& error) {
    return golden_error(error.what());
  }
}

TEST(DeviceMapGolden, MapsSizesAndLimitsAreAccelerates) {
  GoldenTopic topic("device_map");
  // Ties are matched by whole names here, so that there is a map; it must be sound.
  topic.on_quirk("tied-index-error", [](const GoldenCase&) { return json{{"sound", true}}; });
  // A size that is no number is refused as any other text is.
  topic.on_quirk("odd-number", [](const GoldenCase&) { return golden_error("ValueError"); });
  const auto trees = golden_trees();

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, judged_result(golden, trees)); });

  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
