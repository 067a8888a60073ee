// What `hasten plan` is asked: the model, the machines, and the parts of a layout that are fixed.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/files/base/dtype.h"
#include "hasten/files/folders/catalog.h"
#include "hasten/files/hub/hub_headers.h"
#include "hasten/plan/model_presets.h"
#include "hasten/plan/shard_memory.h"
#include "plan_parts.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using core::Value;
using launcher::CommandLine;

const Origin kOrigin{"plan"};
constexpr const char* kFields[] = {"layers",   "hidden", "heads",      "kv_heads",
                                   "head_dim", "ffn",    "vocabulary", "sequence"};

std::string contents_of(const fs::path& path) {
  auto contents = core::read_file(path);
  if (!contents) throw UsageError(kOrigin, "'", path.string(), "' cannot be read. Check the path.");
  return *std::move(contents);
}

plan::ModelShape shape_of_json(const std::string& text, const std::string& source) {
  const Value value = Value::parse_json(text, source);
  const auto has = [&](const char* key) { return value.is_map() && value.contains(key); };
  if (has("children") || has("params")) return plan::shape_from_tree(plan::ModuleTree::from_json(value), source);
  if (has("layers") && !has("model_type")) return plan::shape_from_fields(value, source);
  return plan::shape_from_config(value, source);
}

plan::ModelShape shape_of_weights(const std::string& model) {
  const files::Catalog catalog = files::Catalog::open(model);
  std::vector<plan::TensorNode> tensors;
  for (const std::string& name : catalog.names()) {
    const auto& info = catalog.info(name);
    tensors.push_back({name, info.shape, std::string(files::torch_name(info.dtype)), -1, true});
  }
  return plan::shape_from_tree(plan::ModuleTree::from_names(tensors), model);
}

plan::ModelShape shape_of_path(const std::string& model) {
  if (fs::is_directory(model)) {
    const fs::path config = fs::path(model) / "config.json";
    return fs::exists(config) ? shape_of_json(contents_of(config), config) : shape_of_weights(model);
  }
  return fs::path(model).extension() == ".json" ? shape_of_json(contents_of(model), model) : shape_of_weights(model);
}

bool is_parameter_count(const std::string& word) {
  try {
    plan::parse_parameter_count(word);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

plan::ModelShape shape_of_name(const std::string& model) {
  if (const auto preset = plan::preset_model(model)) return *preset;
  if (is_parameter_count(model))
    throw UsageError(kOrigin, "'", model,
                     "' is a number of parameters, which --memory takes. A layout needs the sizes of the "
                     "layers: name a config.json, a hub's repository or a preset.");
  if (model.find('/') != std::string::npos) {
    const std::string config = files::read_hub_text(model, "config.json", {}, Environment::current());
    if (!config.empty()) return shape_of_json(config, model + "/config.json");
    throw UsageError(kOrigin, "the repository '", model, "' has no config.json. Give its fields, such as --layers.");
  }
  throw UsageError(kOrigin, "'", model, "' is no file, folder or preset; presets are ",
                   join(plan::preset_model_names()), guess_end(model, plan::preset_model_names()));
}

// A flag's value, which the command line has checked.
bool is_true(const std::string& word) {
  return core::parse_flag(word).value_or(false);
}

plan::ModelShape shape_of_fields(const CommandLine& line) {
  Value fields = Value::map({{"name", "the model given by its fields"}});
  for (const char* field : kFields) {
    if (line.has(field)) fields[field] = core::real_number(line.text(field)).value();
  }
  for (const char* required : {"layers", "hidden", "heads", "vocabulary", "sequence"}) {
    if (!fields.contains(required))
      throw UsageError(kOrigin, "no model is named, and --", required,
                       " is not given. Give --memory or a model; see hasten plan --help.");
  }
  return plan::shape_from_fields(fields, "command line");
}

// One part of --layout, "tp=8".
void fix_part(const std::string& name, const std::string& value, plan::SearchOptions& options) {
  const std::map<std::string, std::optional<int>*> numbers = {{"tp", &options.tp},
                                                              {"pp", &options.pp},
                                                              {"chunks", &options.chunks},
                                                              {"cp", &options.cp},
                                                              {"shard", &options.shard}};
  if (const auto found = numbers.find(name); found != numbers.end()) {
    const auto number = core::whole_number<int>(value);
    if (!number || *number < 1)
      throw UsageError(kOrigin, "--layout: ", name, " is '", value, "'; expected a number of at least 1.");
    *found->second = number;
  } else if (name == "zero") {
    options.data_parallel = {plan::parse_data_parallel(value)};
  } else if (name == "recompute") {
    options.recompute = plan::parse_recompute(value);
  } else if (name == "sp") {
    options.sequence_parallel = core::parse_flag(value);
    if (!options.sequence_parallel) throw UsageError(kOrigin, "--layout: sp is '", value, "'; expected true or false.");
  } else if (name == "order") {
    options.base.order = plan::parse_order(value);
  } else if (name == "overlap") {
    options.base.overlap_tensor = plan::parse_tensor_overlap(value);
  } else {
    const std::vector<std::string> known = {"tp",   "pp",        "chunks", "cp",    "shard",
                                            "zero", "recompute", "sp",     "order", "overlap"};
    throw UsageError(kOrigin, "--layout: '", name, "' is no part of a layout; expected ", join(known),
                     guess_end(name, known));
  }
}

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

void fix_parts(const std::string& layout, plan::SearchOptions& options) {
  std::set<std::string> named;
  for (const std::string& part : parts_of(layout)) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos)
      throw UsageError(kOrigin, "--layout: '", part, "' has no '='; expected parts such as tp=8.");
    const std::string name = part.substr(0, equals);
    if (!named.insert(name).second) throw UsageError(kOrigin, "--layout: '", name, "' is given twice. Give it once.");
    fix_part(name, part.substr(equals + 1), options);
  }
  if (options.shard && named.count("zero") == 0) options.data_parallel = {plan::DataParallel::kZero3};
}

}  // namespace

plan::ModelShape planned_model(const CommandLine& line) {
  if (line.rest.empty()) {
    plan::ModelShape shape = shape_of_fields(line);
    shape.flash = !line.has("no_flash");
    if (line.has("gated")) shape.gated = is_true(line.text("gated"));
    if (line.has("tied")) shape.tied = is_true(line.text("tied"));
    return shape;
  }
  const std::string& model = line.rest.front();
  plan::ModelShape shape = fs::exists(model) ? shape_of_path(model) : shape_of_name(model);
  for (const char* field : kFields) {
    if (line.has(field)) plan::set_field(shape, field, core::real_number(line.text(field)).value());
  }
  if (line.has("gated")) shape.gated = is_true(line.text("gated"));
  if (line.has("tied")) shape.tied = is_true(line.text("tied"));
  if (line.has("no_flash")) shape.flash = false;
  plan::check_shape(shape);
  return shape;
}

plan::Cluster planned_cluster(const CommandLine& line) {
  const std::string device = line.has("device") ? line.text("device") : "";
  if (!line.has("cluster")) return plan::preset_cluster(device.empty() ? "h100_80gb" : device);
  const std::string path = line.text("cluster");
  return plan::cluster_from_json(contents_of(path), path, device);
}

plan::SearchOptions search_options(const CommandLine& line, const plan::Cluster& cluster) {
  plan::SearchOptions options;
  options.devices = line.has("devices") ? core::whole_number<int>(line.text("devices")).value()
                                        : static_cast<int>(cluster.machine.devices_per_host);
  options.batch = line.has("batch") ? core::real_number(line.text("batch")).value() : options.devices;
  if (line.has("micro_batch")) options.micro_batch = core::whole_number<int>(line.text("micro_batch")).value();
  if (line.has("optimizer_bytes"))
    options.base.optimizer_bytes = core::whole_number<int>(line.text("optimizer_bytes")).value();
  if (line.has("strategies")) {
    options.data_parallel.clear();
    for (const std::string& name : parts_of(line.text("strategies")))
      options.data_parallel.push_back(plan::parse_data_parallel(name));
  }
  if (line.has("layout")) fix_parts(line.text("layout"), options);
  return options;
}

}  // namespace hasten::cli
