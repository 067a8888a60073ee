// The documented differences of the golden cases "offload.json", each computed apart from the code under test.
// The bytes of files are read here too.
// files are read.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/set_tensor.h"
#include "support/golden.h"
#include "support/golden_nets.h"

namespace hasten::testing {

using nlohmann::json;

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline std::string hex_of(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

inline std::vector<std::string> file_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string dtype_text(const at::Tensor& tensor) {
  return std::string(offload::dtype_name(tensor.scalar_type()));
}

inline offload::DeviceMap map_of(const json& value) {
  offload::DeviceMap map;
  for (const auto& [name, device] : value.items()) {
    map.set(name, device.is_number() ? offload::Device(device.get<int>()) : offload::Device(device.get<std::string>()));
  }
  return map;
}

inline json parameter_dtypes(const torch::nn::Module& net) {
  json dtypes = json::object();
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : offload::named_tensors(net)) {
    if (!item.is_buffer && seen.insert(item.tensor.unsafeGetTensorImpl()).second)
      dtypes[item.name] = dtype_text(item.tensor);
  }
  return dtypes;
}

// hasten has no hooks on submodules and no traffic through them: outputs, files, places and errors are compared.
inline GoldenCase comparable(GoldenCase golden) {
  for (const char* key :
       {"hooks", "traffic", "placed_after", "placed_without_hooks", "near_the_whole_model", "files_of_model"}) {
    golden.expected.erase(key);
  }
  if (golden.family == "language_model") {
    golden.expected.erase("files");
    golden.expected.erase("tolerance");
  }
  if (golden.expected.contains("error")) golden.expected.erase("message");
  for (const char* key : {"to", "forward", "get_weight"}) {
    if (golden.expected.contains(key) && golden.expected[key].is_object()) golden.expected[key].erase("message");
  }
  // What runs right (`fixed`) has no error of the forward.
  if (golden.expected.contains("forward") && golden.fixed.contains("output")) golden.expected.erase("forward");
  // With a forward that fails, the peer saw the modules before it only.
  if (golden.expected.contains("forward") || golden.fixed.contains("output")) golden.expected.erase("during");
  return golden;
}

// Tensors that the map itself names are where it says; Accelerate's hooks reach modules only.
inline json tensors_named_by_the_map(const GoldenCase& golden) {
  if (!golden.expected.contains("placed")) return {};
  json placed = golden.expected.at("placed");
  if (golden.family == "cpu_offload") {
    // On a CPU the memory of the weights is where they compute.
    for (auto& [name, device] : placed.items()) device = "cpu";
    return {{"placed", placed}};
  }
  const bool offload_buffers = golden.input.value("options", json::object()).value("offload_buffers", false);
  const json map = golden.input.value("device_map", json::object());
  for (const auto& [name, device] : map.items()) {
    const bool is_parameter = name != "offset";
    if (placed.contains(name) && device == "disk" && (is_parameter || offload_buffers)) placed[name] = "meta";
  }
  return {{"placed", placed}};
}

// Buffers of offloaded modules are away with offload_buffers; Accelerate puts them on the CPU while they load.
inline json buffers_with_their_modules(const GoldenCase& golden) {
  const json options = golden.input.value("options", json::object());
  json patch = json::object();
  const bool is_away = golden.family != "cpu_offload";  // which leaves all where it is
  if (is_away && options.value("offload_buffers", false) && golden.expected.contains("placed")) {
    json placed = golden.expected.at("placed");
    const auto map = map_of(golden.input.value("device_map", json{{"", "disk"}}));
    for (auto& [name, place] : placed.items()) {
      const auto* device = map.device_of(name);
      if (device != nullptr && *device == offload::Device("disk")) place = "meta";
    }
    patch["placed"] = placed;
  }
  // A dtype holds for all floating-point tensors.
  if (options.contains("dtype") && golden.expected.contains("dtypes")) {
    json dtypes = golden.expected.at("dtypes");
    for (auto& [name, dtype] : dtypes.items()) {
      if (dtype == "float32") dtype = options.at("dtype");
    }
    patch["dtypes"] = dtypes;
  }
  return patch;
}

inline json single_pattern(const GoldenCase& golden) {
  const std::string pattern = golden.input.at("options").at("skip_modules_pattern");
  const auto net = golden_net(golden.input.at("net"));
  golden_fill_module(*net);
  const auto storage = offload::scalar_type_of_name(golden.input.at("storage_dtype").get<std::string>());
  const torch::NoGradGuard no_grad;
  json stored = parameter_dtypes(*net), during = json::object();
  for (const auto& item : net->named_modules("", false)) {
    auto* linear = item.value()->as<torch::nn::Linear>();
    if (linear == nullptr || item.key().find(pattern) != std::string::npos) continue;
    for (auto& parameter : linear->named_parameters(false)) {
      stored[item.key() + "." + parameter.key()] = golden.input.at("storage_dtype");
      parameter.value().copy_(parameter.value().to(storage));
    }
    during[item.key()] = golden.input.at("compute_dtype");
  }
  if (stored.contains("head.weight")) {
    stored["emb.weight"] = stored["head.weight"];  // one tensor, listed once
    stored.erase("head.weight");
  }
  return {
      {"stored", stored}, {"after", stored}, {"during", during}, {"output", tensor_json(net->forward(net->example()))}};
}

// A forward that fails leaves weights as they rest.
inline json at_rest_after_an_error(const GoldenCase& golden) {
  return {{"after", golden.expected.at("stored")}};
}

}  // namespace hasten::testing
