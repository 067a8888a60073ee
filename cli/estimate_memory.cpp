// `hasten estimate-memory`: what loading or training a model takes, from the headers of its files alone.
//
// After `accelerate estimate-memory`, which builds the model in Python to find out. The table is the same.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "commands.h"
#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/value.h"
#include "hasten/files/folders/catalog.h"
#include "hasten/files/hub/hub_headers.h"
#include "hasten/plan/device_map.h"
#include "hasten/plan/memory_estimate.h"
#include "hasten/plan/memory_limits.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using core::Value;

const HelpText kEstimateMemoryHelp = {
    "hasten estimate-memory [OPTIONS] MODEL",
    "Prints the memory that a model's weights take in several dtypes, and that training with Adam takes. MODEL is a "
    "weight file, an index, a folder, or a repository of a hub (\"name\" or \"organisation/name\"); only headers are "
    "read.",
    "Largest Layer is what a device needs beside its weights if the rest is offloaded."};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> dtypes_of(const launcher::CommandLine& line) {
  if (!line.has("dtypes")) return {"float32", "float16", "int8", "int4"};
  std::vector<std::string> dtypes;
  for (const std::string& value : line.options.at("dtypes").values) {
    for (auto& dtype : split(value)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// "name" or "organisation/name", as a hub's repositories are called.
bool may_be_repository(const std::string& model) {
  const auto valid = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  return !model.empty() && std::isalnum(static_cast<unsigned char>(model.front())) != 0 && model.back() != '/' &&
         std::count(model.begin(), model.end(), '/') <= 1 && std::all_of(model.begin(), model.end(), valid);
}

// The configuration beside the weights, null if there is none.
Value config_beside(const std::string& model) {
  std::string text, path;
  if (!fs::exists(model)) {
    text = files::read_hub_text(model, "config.json", {}, Environment::current());
    path = model + "/config.json";
  } else {
    const fs::path folder = fs::is_directory(model) ? fs::path(model) : fs::path(model).parent_path();
    path = (folder / "config.json").string();
    text = core::read_file(path).value_or("");
  }
  return text.empty() ? Value() : Value::parse_json(text, path);
}

plan::ModuleTree tree_of(const files::Catalog& catalog, bool as_float32) {
  std::vector<plan::TensorNode> tensors;
  for (const std::string& name : catalog.names()) {
    const auto& info = catalog.info(name);
    const bool is_float = files::is_floating_point(info.dtype);
    tensors.push_back(
        {name, info.shape, as_float32 && is_float ? "float32" : std::string(files::torch_name(info.dtype)), -1, true});
  }
  return plan::ModuleTree::from_names(tensors);
}

// Bytes that the key-value cache takes for a token in two-byte elements; 0 if the configuration lacks it.
int64_t cache_bytes_per_token(const Value& config) {
  const auto integer = [&](std::initializer_list<const char*> keys) -> int64_t {
    for (const char* key : keys) {
      const Value* value = config.find(key);
      if (value != nullptr && value->is_int()) return value->as_int();
    }
    return 0;
  };
  const int64_t layers = integer({"num_hidden_layers", "n_layer"}), heads = integer({"num_attention_heads", "n_head"});
  const int64_t hidden = integer({"hidden_size", "n_embd"});
  if (layers == 0 || heads == 0 || hidden == 0) return 0;
  const int64_t own_heads = integer({"num_key_value_heads"}), own_dim = integer({"head_dim"});
  constexpr int64_t kKeysAndValues = 2, kBytes = 2;
  return kKeysAndValues * kBytes * layers * (own_heads > 0 ? own_heads : heads) *
         (own_dim > 0 ? own_dim : hidden / heads);
}

// The last size is the CPU's, those before it are accelerators'.
plan::MemoryLimits limits_of(const std::string& sizes) {
  const auto parts = split(sizes);
  plan::MaxMemory limits;
  for (size_t i = 0; i < parts.size(); ++i) {
    limits.emplace_back(i + 1 < parts.size() ? plan::Device(static_cast<int>(i)) : plan::Device("cpu"),
                        plan::Bytes(parts[i]));
  }
  return plan::memory_limits(limits);
}

// The weights that a map puts on a device.
struct DeviceRow {
  plan::Device device;
  double limit = 0, bytes = 0;
  std::vector<std::string> modules = {};
};

// A row for each device of the limits that the map uses, and "disk".
std::vector<DeviceRow> rows_of(const plan::DeviceMap& map, const plan::ModuleTree& tree,
                               const plan::MemoryLimits& limits) {
  std::vector<DeviceRow> rows;
  for (const auto& [device, limit] : limits.entries) rows.push_back({device, limit});
  if (limits.find(plan::Device("disk")) == nullptr) rows.push_back({plan::Device("disk")});
  const auto sizes = plan::compute_module_sizes(tree);
  for (const auto& [name, device] : map) {
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&, of = device](const auto& each) { return each.device == of; });
    if (row == rows.end()) continue;
    row->bytes += sizes.at(name);
    row->modules.push_back(name.empty() ? "the whole model" : name);
  }
  return rows;
}

std::string devices_table(const std::vector<DeviceRow>& rows) {
  constexpr size_t kNamed = 3;  // of more modules the first and the last are shown
  std::vector<std::vector<std::string>> cells{{"device", "limit", "weights", "modules"}};
  for (const DeviceRow& row : rows) {
    const bool is_disk = row.device == plan::Device("disk");
    if (row.modules.empty() && is_disk) continue;
    std::string modules = row.modules.empty() ? "-" : join(row.modules, ", ");
    if (row.modules.size() > kNamed)
      modules = text(row.modules.front(), " … ", row.modules.back(), " (", row.modules.size(), ")");
    cells.push_back({plan::device_text(row.device),
                     is_disk ? "-" : plan::convert_bytes(static_cast<int64_t>(row.limit)),
                     plan::convert_bytes(static_cast<int64_t>(row.bytes)), modules});
  }
  std::vector<size_t> widths(3, 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string table;
  for (const auto& line : cells) {
    for (size_t i = 0; i < widths.size(); ++i) table += line[i] + std::string(widths[i] - line[i].size() + 2, ' ');
    table += line.back() + "\n";
  }
  return table;
}

files::Catalog open_model(const std::string& model) {
  if (fs::exists(model)) return files::Catalog::open(model);
  if (may_be_repository(model)) return files::Catalog(files::open_hub_headers(model, {}, Environment::current()));
  throw UsageError(Origin{"estimate-memory"}, "'", model,
                   "' is not there. Name a weight file, an index, a folder or a repository of a hub.");
}

}  // namespace

int estimate_memory(const std::vector<std::string>& words) {
  const auto& options = estimate_memory_options();
  const launcher::CommandLine line = read_options("estimate-memory", options, words, 1);
  if (line.help) return std::cout << help_of(kEstimateMemoryHelp, options, colours_wanted()), 0;
  if (line.rest.empty())
    throw UsageError(Origin{"estimate-memory"}, "no model is named. See hasten estimate-memory --help.");
  const std::string model = line.rest.front();
  const auto catalog = open_model(model);
  const Value config = config_beside(model);
  // Blocks of transformers' models stay whole on a device.
  const bool has_blocks = config.find("model_type") != nullptr;
  const std::vector<std::string> whole = has_blocks ? std::vector<std::string>{"block"} : std::vector<std::string>{};
  const auto sizes = plan::calculate_maximum_sizes(tree_of(catalog, true), whole);
  const auto rows = plan::estimate_rows(sizes, dtypes_of(line));
  plan::DeviceMap map;
  std::vector<DeviceRow> devices;
  if (line.has("map")) {
    plan::InferOptions infer;
    infer.no_split_module_classes = whole;
    const auto tree = tree_of(catalog, false);
    const auto limits = limits_of(line.text("map"));
    map = plan::infer_auto_device_map(tree, limits, infer).device_map;
    devices = rows_of(map, tree, limits);
  }
  const int64_t cache = cache_bytes_per_token(config);
  if (!line.has("json")) {
    const std::string name = !fs::exists(model) ? model
                             : fs::path(model).lexically_normal().has_filename()
                                 ? fs::path(model).filename().string()
                                 : fs::path(model).parent_path().filename().string();
    std::cout << plan::estimate_table(rows, name) << "\n";
    if (cache > 0) std::cout << "Key-value cache in 16 bits: " << plan::convert_bytes(cache) << " a token\n";
    if (line.has("map")) std::cout << devices_table(devices) << map.to_json() << "\n";
    return 0;
  }
  auto out = Value::map({{"total_bytes", sizes.total},
                         {"largest_layer_bytes", sizes.largest.bytes},
                         {"largest_layers", sizes.largest.names}});
  auto list = Value::list();
  for (const auto& row : rows) {
    list.push_back(Value::map({{"dtype", row.dtype},
                               {"largest_layer", row.largest_layer},
                               {"total", row.total},
                               {"training_adam", row.training}}));
  }
  out["dtypes"] = list;
  if (cache > 0) out["cache_bytes_per_token"] = cache;
  if (line.has("map")) {
    out["device_map"] = Value::parse_json(map.to_json());
    auto list_of_devices = Value::list();
    for (const DeviceRow& row : devices) {
      list_of_devices.push_back(Value::map({{"device", plan::device_text(row.device)},
                                            {"limit_bytes", static_cast<int64_t>(row.limit)},
                                            {"weight_bytes", static_cast<int64_t>(row.bytes)},
                                            {"modules", row.modules}}));
    }
    out["devices"] = list_of_devices;
  }
  std::cout << out.to_json(2) << "\n";
  return 0;
}

}  // namespace hasten::cli
