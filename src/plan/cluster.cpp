// See cluster.h. Rated figures are those of the makers' data sheets; network: a card a device.
#include "hasten/plan/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

using core::Value;

constexpr double kLeastBandwidth = 1e8, kMostBandwidth = 1e14;

struct ConstantName {
  const char* name;
  double Constants::*member;
};
constexpr ConstantName kConstantNames[] = {
    {"product_share", &Constants::product_share},
    {"small_size_cost", &Constants::small_size_cost},
    {"attention_share", &Constants::attention_share},
    {"wide_passes_unfused", &Constants::wide_passes_unfused},
    {"wide_passes_flash", &Constants::wide_passes_flash},
    {"score_passes", &Constants::score_passes},
    {"cut_passes", &Constants::cut_passes},
    {"logit_passes", &Constants::logit_passes},
    {"memory_share", &Constants::memory_share},
    {"link_share", &Constants::link_share},
    {"network_share", &Constants::network_share},
    {"link_latency_s", &Constants::link_latency_s},
    {"network_latency_s", &Constants::network_latency_s},
    {"data_overlap", &Constants::data_overlap},
    {"exposed_data", &Constants::exposed_data},
    {"seconds_a_layer", &Constants::seconds_a_layer},
    {"seconds_a_step", &Constants::seconds_a_step},
};
// Those that divide something must not be 0.
constexpr std::string_view kAboveZero[] = {"product_share", "attention_share", "memory_share", "link_share",
                                           "network_share"};

struct MachineField {
  const char* name;
  double Machine::*member;
  bool bandwidth, required;
};
constexpr MachineField kMachineFields[] = {
    {"peak_flops", &Machine::peak_flops, false, true},
    {"peak_flops_float32", &Machine::peak_flops_float32, false, false},
    {"memory_bandwidth", &Machine::memory_bandwidth, true, true},
    {"memory_gib", &Machine::memory_gib, false, true},
    {"devices_per_host", &Machine::devices_per_host, false, true},
    {"link_bandwidth", &Machine::link_bandwidth, true, true},
    {"network_bandwidth", &Machine::network_bandwidth, true, true},
};

struct DevicePreset {
  const char* name;
  Machine machine;
};

const std::array<DevicePreset, 5>& device_presets() {
  static const std::array<DevicePreset, 5> machines = {{
      {"a100_40gb", {"A100 SXM 40GB", 312e12, 156e12, 1.55e12, 39.6, 8, 300e9, 25e9, false}},
      {"a100_80gb", {"A100 SXM 80GB", 312e12, 156e12, 2.0e12, 79.2, 8, 300e9, 25e9, false}},
      {"h100_80gb", {"H100 SXM 80GB", 989e12, 494.5e12, 3.35e12, 79.1, 8, 450e9, 50e9, false}},
      {"h100_500w", {"H100 96GB HBM2e at 500 W", 989e12, 494.5e12, 2.4e12, 95.0, 8, 450e9, 50e9, false}},
      {"cpu", {"CPU core", 50e9, 50e9, 10e9, 4, 8, 5e9, 1e9, true}},
  }};
  return machines;
}

Constants constants_of_cpu() {
  Constants constants;
  constants.product_share = 0.8;
  constants.small_size_cost = 30;
  constants.attention_share = 0.3;
  constants.link_share = 0.8;
  // One thread computes and sends: an exchange hides behind nothing.
  constants.data_overlap = 0;
  constants.seconds_a_step = 0;
  return constants;
}

// The line of a key's first appearance, 0 if it is not there.
size_t line_of_key(const std::string& text, const std::string& key) {
  const size_t place = text.find("\"" + key + "\"");
  if (place == std::string::npos) return 0;
  return 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(place), '\n'));
}

class ClusterReader {
 public:
  ClusterReader(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  Cluster read(const Value& root, const std::string& name) {
    const Value& value = one_machine(root, name);
    Cluster cluster;
    cluster.name = name.empty() ? source_ : name;
    const Value* device = value.find("device");
    if (device == nullptr || !device->is_string())
      refuse("device", "is missing or no text; expected the device's name");
    cluster.machine.device = device->as_string();
    std::tie(cluster.constants, cluster.origins) = constants_of_device(cluster.machine.device);
    for (const auto& [key, entry] : value.as_map()) read_entry(key, entry, cluster);
    for (const MachineField& field : kMachineFields) {
      if (field.required && !value.contains(field.name)) refuse(field.name, "is missing");
    }
    if (std::floor(cluster.machine.devices_per_host) != cluster.machine.devices_per_host ||
        cluster.machine.devices_per_host < 1)
      refuse("devices_per_host", "is no whole number of at least 1");
    return cluster;
  }

 private:
  template <class... Words>
  [[noreturn]] void refuse(const std::string& key, const Words&... words) const {
    const size_t line = line_of_key(text_, key);
    const std::string place = line > 0 ? text(", line ", line) : "";
    throw DataError({"plan"}, source_, source_, place, ": '", key, "' ", words..., ".");
  }

  const Value& one_machine(const Value& root, const std::string& name) const {
    if (!root.is_map()) throw DataError({"plan"}, source_, source_, " is no map; expected the fields of a machine.");
    const Value* machines = root.find("machines");
    if (machines == nullptr) return root;
    if (!machines->is_map() || machines->empty()) refuse("machines", "is no map of machines by name");
    if (name.empty() && machines->size() == 1) return machines->as_map().front().second;
    if (const Value* found = machines->find(name); found != nullptr && found->is_map()) return *found;
    std::vector<std::string> names;
    for (const auto& [key, unused] : machines->as_map()) names.push_back(key);
    refuse("machines", "holds ", join(names), ", and not '", name, "'. Name one with --device");
  }

  void read_entry(const std::string& key, const Value& entry, Cluster& cluster) {
    if (key == "device" || key == "name") return;
    if (key == "constants") return read_constants(entry, cluster);
    if (key == "shares_memory") {
      if (!entry.is_bool()) refuse(key, "is ", entry.to_json(), "; expected true or false");
      cluster.machine.shares_memory = entry.as_bool();
      return;
    }
    std::vector<std::string> known = {"device", "constants", "shares_memory"};
    for (const MachineField& field : kMachineFields) {
      known.emplace_back(field.name);
      if (key != field.name) continue;
      const double value = number(key, entry);
      if (field.bandwidth && (value < kLeastBandwidth || value > kMostBandwidth))
        refuse(key, "is ", count_text(value, "byte"), " a second; expected 1e8 to 1e14. If this is gigabytes, write ",
               value, "e9");
      if (value <= 0) refuse(key, "is ", value, "; expected a number above 0");
      cluster.machine.*field.member = value;
      return;
    }
    refuse(key, "is no field of a machine; expected one of ", join(known), did_you_mean(key, known));
  }

  void read_constants(const Value& entries, Cluster& cluster) {
    if (!entries.is_map()) refuse("constants", "is no map of constants by name");
    for (const auto& [key, entry] : entries.as_map()) {
      double* constant = find_constant(cluster.constants, key);
      if (constant == nullptr)
        refuse(key, "is no constant; expected one of ", join(constant_names()), did_you_mean(key, constant_names()));
      const Value* value = entry.is_map() ? entry.find("value") : &entry;
      if (value == nullptr) refuse(key, "has no 'value'");
      *constant = number(key, *value);
      const bool divides = std::find(std::begin(kAboveZero), std::end(kAboveZero), key) != std::end(kAboveZero);
      if (divides && *constant == 0) refuse(key, "is 0; expected a number above 0");
      if (const Value* source = entry.find("source"); source != nullptr && source->is_string()) {
        cluster.sources[key] = source->as_string();
        if (source->as_string().starts_with("measured")) cluster.origins = Origins::kMeasured;
      }
      if (const Value* residual = entry.find("residual")) cluster.residuals[key] = number(key, *residual);
    }
  }

  double number(const std::string& key, const Value& value) const {
    if (!value.is_number() || !std::isfinite(value.as_double()) || value.as_double() < 0)
      refuse(key, "is ", value.to_json(), "; expected a finite number of at least 0");
    return value.as_double();
  }

  const std::string& text_;
  const std::string& source_;
};

}  // namespace

Cluster preset_cluster(const std::string& name) {
  const std::string full = name == "h100" ? "h100_80gb" : name == "a100" ? "a100_80gb" : name;
  for (const DevicePreset& preset : device_presets()) {
    if (full != preset.name) continue;
    Cluster cluster;
    cluster.name = full;
    cluster.machine = preset.machine;
    std::tie(cluster.constants, cluster.origins) = constants_of_device(preset.machine.device);
    if (preset.machine.shares_memory) cluster.constants = constants_of_cpu();
    return cluster;
  }
  throw UsageError({"plan"}, "'", name, "' is no device that is known; expected one of ", join(preset_cluster_names()),
                   ", or --cluster FILE", guess_end(name, preset_cluster_names()));
}

std::vector<std::string> preset_cluster_names() {
  std::vector<std::string> names;
  for (const DevicePreset& preset : device_presets()) names.emplace_back(preset.name);
  return names;
}

std::pair<Constants, Origins> constants_of_device(const std::string& device) {
  const bool a100 = device.find("A100") != std::string::npos, h100 = device.find("H100") != std::string::npos;
  Constants constants;
  if (a100) {
    constants.product_share = 0.83;
    constants.small_size_cost = 80;
    constants.attention_share = 0.32;
  }
  if (device.find("500 W") != std::string::npos) {
    constants.product_share *= 0.85;
    constants.attention_share *= 0.85;
  }
  return {constants, a100 || h100 ? Origins::kPublishedFit : Origins::kRated};
}

Cluster cluster_from_json(const std::string& text, const std::string& source, const std::string& name) {
  return ClusterReader(text, source).read(Value::parse_json(text, source), name);
}

Value cluster_json(const Cluster& cluster) {
  Value out = Value::map({{"device", cluster.machine.device}});
  for (const MachineField& field : kMachineFields) {
    if (const double value = cluster.machine.*field.member; value > 0) out[field.name] = value;
  }
  out["shares_memory"] = cluster.machine.shares_memory;
  Value constants = Value::map();
  Constants copy = cluster.constants;
  for (const std::string& key : constant_names()) {
    const auto source = cluster.sources.find(key);
    Value entry = Value::map({{"value", *find_constant(copy, key)}});
    entry["source"] = source != cluster.sources.end()             ? source->second
                      : cluster.origins == Origins::kPublishedFit ? "published fit"
                                                                  : "rated";
    if (const auto residual = cluster.residuals.find(key); residual != cluster.residuals.end())
      entry["residual"] = residual->second;
    constants[key] = entry;
  }
  out["constants"] = constants;
  return out;
}

std::vector<std::string> constant_names() {
  std::vector<std::string> names;
  for (const ConstantName& constant : kConstantNames) names.emplace_back(constant.name);
  return names;
}

double* find_constant(Constants& constants, const std::string& name) {
  for (const ConstantName& constant : kConstantNames) {
    if (name == constant.name) return &(constants.*constant.member);
  }
  return nullptr;
}

}  // namespace hasten::plan
