// Offloading, hooks, casting, empty construction and language models against Accelerate and transformers
// (offload.json).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/models/causal_lm.h"
#include "hasten/models/generate.h"
#include "hasten/offload/hooks/hook_site.h"
#include "hasten/offload/hooks/layerwise_casting.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/plan/memory_estimate.h"
#include "models/offload_rules.h"
#include "offload/load/memory_source.h"
#include "support/golden.h"
#include "support/golden_nets.h"

namespace hasten::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::path(::testing::TempDir()) / text("hasten_offload_golden_", ::getpid())) {
    fs::remove_all(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  fs::path path_;
};

std::string golden_path(const json& folder) {
  return golden_folder() + "/" + folder.get<std::string>();
}

void write_tensors(const std::string& folder, const offload::NamedTensors& tensors) {
  std::vector<files::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, offload::file_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
    files::write_offload_weight(folder, infos.back(),
                                tensor.numel() == 0 ? nullptr : tensor.contiguous().const_data_ptr());
  }
  files::merge_offload_index(folder, infos);
}

json weight_result(const json& input) {
  const TemporaryFolder folder;
  const std::string name = input.at("name");
  const at::Tensor tensor = golden_fill(input.at("shape"), input.at("dtype"), input.at("fill"));
  write_tensors(folder.path(), {{name, tensor}});
  const std::string bytes = file_bytes(fs::path(folder.path()) / (name + ".dat"));
  const auto source = files::open_offload_folder(folder.path());
  const at::Tensor back = offload::SourceReader(*source).tensor(name);
  const bool equal = tensor.nbytes() == 0 ||
                     std::memcmp(back.contiguous().const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()) == 0;
  return {{"index", json::parse(file_bytes(fs::path(folder.path()) / "index.json"))},
          {"bytes", bytes.size()},
          {"hex", hex_of(bytes)},
          {"back", {{"shape", back.sizes().vec()}, {"dtype", dtype_text(back)}, {"equal", equal}}}};
}

offload::NamedTensors tensors_of(const json& list) {
  offload::NamedTensors tensors;
  for (const auto& item : list) tensors.emplace_back(item.at(0), golden_fill(item.at(1), item.at(2), item.at(3)));
  return tensors;
}

json folder_result(const json& input) {
  const TemporaryFolder folder;
  if (input.contains("saves")) {
    for (const auto& save : input.at("saves")) write_tensors(folder.path(), tensors_of(save));
  } else {
    const auto net = golden_net(input.at("net"));
    golden_fill_module(*net);
    offload::NamedTensors tensors;
    for (const auto& item : offload::named_tensors(*net)) tensors.emplace_back(item.name, item.tensor.detach());
    write_tensors(folder.path(), tensors);
  }
  json files = json::object();
  for (const auto& name : file_names(folder.path())) {
    if (name == "index.json") continue;
    const std::string bytes = file_bytes(fs::path(folder.path()) / name);
    files[name] = {bytes.size(), core::sha256_hex(bytes)};
  }
  const std::string index = file_bytes(fs::path(folder.path()) / "index.json");
  return {{"index", json::parse(index)},
          {"keys_in_order", files::open_offload_folder(folder.path())->names()},
          {"index_text_sha256", core::sha256_hex(index)},
          {"files", files}};
}

// An index in the order of the file, which json's own maps lose.
std::string index_text(const std::string& case_name) {
  std::ifstream file(golden_folder() + "/offload.json");
  const auto content = nlohmann::ordered_json::parse(file);
  for (const auto& entry : content.at("cases")) {
    if (entry.at("case") == case_name) return entry.at("input").at("index").dump();
  }
  return "{}";
}

json loader_result(const GoldenCase& golden) {
  const json& input = golden.input;
  offload::OffloadedWeights weights;
  const std::string folder = golden_path(input.at("folder"));
  if (input.value("save_folder", false)) weights.save_folder = folder;
  if (!input.at("state_dict").is_null()) weights.state_dict = tensors_of(input.at("state_dict"));
  if (!input.at("index").is_null()) {
    std::string index = index_text(golden.name);
    for (size_t at = index.find("<folder>"); at != std::string::npos; at = index.find("<folder>"))
      index.replace(at, 8, folder);
    weights.index = core::Value::parse_json(index);
  }
  const auto catalog = offload::offloaded_weights_loader(weights);
  json values = json::object();
  offload::SourceReader reader(catalog);
  for (const auto& name : catalog.names()) {
    const at::Tensor tensor = reader.tensor(name);
    values[name] = {dtype_text(tensor), tensor_json(tensor)};
  }
  return {{"len", catalog.size()}, {"keys", catalog.names()}, {"values", values}};
}

// The value of a key is its number, counted from 1.
files::Catalog catalog_of(const std::vector<std::string>& keys) {
  offload::NamedTensors tensors;
  for (const auto& key : keys) tensors.emplace_back(key, torch::full({1}, static_cast<double>(tensors.size() + 1)));
  return files::Catalog(offload::memory_source(tensors));
}

json prefixed_result(const GoldenCase& golden) {
  const json& input = golden.input;
  const std::string prefix = input.at("prefix");
  const auto part = catalog_of(input.at("keys")).with_prefix(prefix);
  json names = json::array();
  for (const auto& name : part.names()) names.push_back(prefix + name);
  json weight = {{"error", "KeyError"}};
  if (part.contains("weight")) {
    // Cases have the value, or the key under which the whole has it.
    const bool has_number = golden.expected.value("get_weight", json()).is_number();
    offload::SourceReader reader(part);
    weight = has_number ? json(reader.tensor("weight").item<int64_t>()) : json(prefix + "weight");
  }
  return {{"iter", names}, {"len", part.size()}, {"get_weight", weight}};
}

// A module with the tensors of a tree; its dictionary may be changed.
struct TreeModule : torch::nn::Module {
  TreeModule(const json& tree, const TreeModule* root, std::map<int64_t, at::Tensor>& ties) {
    if (root == nullptr) root = this;
    const auto list = [&](const char* key) { return tree.value(key, json::array()); };
    for (const auto& item : list("params")) register_parameter(item.at("name"), tensor_of(item, ties));
    for (const auto& item : list("buffers")) register_buffer(item.at("name"), tensor_of(item, ties));
    for (const auto& child : list("children")) {
      const std::string name = child.at(0);
      if (child.at(1).contains("same_as")) {
        register_module(name, root->named_modules("", false)[child.at(1).at("same_as").get<std::string>()]);
      } else {
        register_module(name, std::make_shared<TreeModule>(child.at(1), root, ties));
      }
    }
  }
  static at::Tensor tensor_of(const json& item, std::map<int64_t, at::Tensor>& ties) {
    at::Tensor made = golden_fill(item.at("shape"), item.at("dtype"), 0);
    if (!item.contains("tie")) return made;
    return ties.try_emplace(item.at("tie").get<int64_t>(), made).first->second;
  }
  void empty(const std::string& name) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      parameters_[name] = parameters_[name].detach().to(at::kMeta);
    } else {
      std::dynamic_pointer_cast<TreeModule>(named_children()[name.substr(0, dot)])->empty(name.substr(dot + 1));
    }
  }
};

json retie_result(const json& input) {
  std::map<int64_t, at::Tensor> ties;
  const auto module = std::make_shared<TreeModule>(input.at("model"), nullptr, ties);
  const auto groups = offload::find_tied_parameters(*module);
  const auto tensor_at = [&](const std::string& name) {
    for (const auto& item : offload::named_tensors(*module)) {
      if (item.name == name) return item.tensor;
    }
    return at::Tensor();
  };
  const auto objects = [&](bool by_storage) {
    json counts = json::array();
    for (const auto& group : groups) {
      std::set<const void*> distinct;
      for (const auto& name : group) {
        const at::Tensor tensor = tensor_at(name);
        distinct.insert(by_storage && !tensor.is_meta() ? tensor.const_data_ptr()
                                                        : static_cast<const void*>(tensor.unsafeGetTensorImpl()));
      }
      counts.push_back(distinct.size());
    }
    return counts;
  };
  const std::string kept = input.at("kept");
  for (const auto& group : groups) {
    const std::string keep = kept == "first" ? group.front() : kept == "last" ? group.back() : "";
    for (const auto& name : group) {
      if (name != keep) module->empty(name);
    }
  }
  const json before = objects(false);
  offload::retie_parameters(*module, groups);
  json on_meta = json::array();
  for (const auto& group : groups) {
    json flags = json::array();
    for (const auto& name : group) flags.push_back(tensor_at(name).is_meta());
    on_meta.push_back(flags);
  }
  return {{"groups", groups}, {"objects_before", before}, {"objects_after", objects(true)}, {"on_meta_after", on_meta}};
}

// Notes its events; adds to the input and multiplies the output as the case says.
class NotingHook : public offload::ModelHook {
 public:
  NotingHook(const json& hook, json& events)
      : id_(hook.at("id")),
        pre_add_(hook.value("pre_add", 0.0)),
        post_mul_(hook.value("post_mul", 1.0)),
        events_(events) {
    no_grad = hook.value("no_grad", false);
  }
  void attached(torch::nn::Module&) override { events_.push_back({id_, "init"}); }
  void detached(torch::nn::Module&) override { events_.push_back({id_, "detach"}); }
  void before_forward(torch::nn::Module&, offload::Arguments& arguments) override {
    events_.push_back({id_, "pre", at::GradMode::is_enabled()});
    auto& x = arguments.get<at::Tensor>(0);
    if (pre_add_ != 0) x = x + pre_add_;
  }
  void after_forward(torch::nn::Module&, offload::Output& output) override {
    auto& y = output.get<at::Tensor>();
    events_.push_back({id_, "post", y.requires_grad()});
    if (post_mul_ != 1) y = y * post_mul_;
  }

 private:
  std::string id_;
  double pre_add_, post_mul_;
  json& events_;
};

json hooks_result(const json& input) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
  golden_fill_module(*net);
  auto handle = offload::dispatch_model(net, {{"", "cpu"}});
  json events = json::array(), outputs = json::array(), requires_grad = json::array();
  const auto add = [&](const std::string& module, offload::ModelHookPtr hook, bool append) {
    if (module.empty()) return handle.add_hook(std::move(hook), append);
    offload::add_hook(*net, module, std::move(hook), {.append = append});
  };
  for (const auto& action : input.at("actions")) {
    const std::string kind = action.at(0);
    if (kind == "add") {
      add(action.at(1), std::make_shared<NotingHook>(action.at(2), events), action.at(3));
    } else if (kind == "add_sequential") {
      std::vector<offload::ModelHookPtr> hooks;
      for (const auto& hook : action.at(2)) hooks.push_back(std::make_shared<NotingHook>(hook, events));
      add(action.at(1), std::make_shared<offload::SequentialHook>(hooks), false);
    } else if (kind == "remove" || kind == "remove_submodules") {
      const std::string module = action.at(1);
      const bool recurse = kind == "remove_submodules" || action.at(2).get<bool>();
      if (module.empty()) handle.remove_hooks();
      offload::remove_hook(*net, module, {.recurse = recurse});
    } else if (kind == "forward") {
      events.push_back({"forward"});
      const at::Tensor y = handle(golden_fill({2, 3}, "float32", 1000));
      outputs.push_back(tensor_json(y.detach()));
      requires_grad.push_back(y.requires_grad());
    }
  }
  return {{"events", events}, {"outputs", outputs}, {"output_requires_grad", requires_grad}};
}

json placed_json(const torch::nn::Module& net) {
  json placed = json::object();
  for (const auto& item : offload::named_tensors(net))
    placed[item.name] = offload::is_offloaded(item.tensor) ? "meta" : "cpu";
  return placed;
}

json dtypes_json(const torch::nn::Module& net) {
  json dtypes = json::object();
  for (const auto& item : offload::named_tensors(net)) dtypes[item.name] = dtype_text(item.tensor);
  return dtypes;
}

json folder_json(const std::string& folder) {
  return fs::exists(folder) ? json(file_names(folder)) : json();
}

json moved_json(const offload::Dispatched<std::shared_ptr<GoldenNet>>& model) {
  try {
    model.to(at::kCPU);
    return true;
  } catch (const UsageError&) {
    return {{"error", "RuntimeError"}};
  }
}

// dispatch/, cpu_offload/, disk_offload/: a net in memory.
json offload_result(const GoldenCase& golden) {
  const torch::NoGradGuard no_grad;
  const TemporaryFolder folder;
  const json options = golden.input.value("options", json::object());
  auto net = golden_net(golden.input.at("net"));
  golden_fill_module(*net);
  const at::Tensor plain = net->forward(net->example());
  offload::DispatchOptions dispatch;
  dispatch.offload_buffers = options.value("offload_buffers", false);
  if (!options.value("no_dir", false)) dispatch.offload_dir = folder.path();
  const auto run = [&] {
    if (golden.family == "cpu_offload") return offload::cpu_offload(net);
    if (golden.family == "disk_offload") return offload::disk_offload(net, folder.path(), dispatch);
    return offload::dispatch_model(net, map_of(golden.input.at("device_map")), dispatch);
  };
  const auto model = run();
  const at::Tensor output = model(net->example());
  return {{"output", tensor_json(output)},
          {"output_equal", output.equal(plain)},
          {"folder", folder_json(folder.path())},
          {"placed", placed_json(*net)},
          {"to", moved_json(model)}};
}

json load_result(const json& input) {
  const torch::NoGradGuard no_grad;
  const TemporaryFolder folder;
  const json options = input.value("options", json::object());
  auto net = offload::empty_weights([&] { return golden_net(input.at("net")); },
                                    {.include_buffers = options.value("include_buffers", false)});
  offload::DispatchOptions dispatch;
  if (!input.at("device_map").is_null()) {
    dispatch.device_map = input.at("device_map").is_string()
                              ? offload::DeviceMapChoice(input.at("device_map").get<std::string>())
                              : offload::DeviceMapChoice(map_of(input.at("device_map")));
  }
  if (options.contains("dtype")) dispatch.dtype = offload::scalar_type_of_name(options.at("dtype").get<std::string>());
  dispatch.offload_buffers = options.value("offload_buffers", false);
  dispatch.strict = options.value("strict", false);
  if (!options.value("no_folder", false)) {
    dispatch.offload_folder = folder.path();
    dispatch.copy_to_offload_folder = true;
  }
  const auto model = offload::load_checkpoint_and_dispatch(net, golden_path(input.at("folder")), dispatch);
  at::Tensor x = net->example();
  if (x.is_floating_point() && dispatch.dtype) x = x.to(*dispatch.dtype);
  const at::Tensor output = model(x);
  const fs::path index = fs::path(folder.path()) / "index.json";
  return {{"output", tensor_json(output)},
          {"placed", placed_json(*net)},
          {"dtypes", dtypes_json(*net)},
          {"folder", folder_json(folder.path())},
          {"index", fs::exists(index) ? json::parse(file_bytes(index)) : json()}};
}

struct CastingInput {
  std::shared_ptr<GoldenNet> net;
  at::ScalarType storage, compute;
  offload::CastingOptions options;
};

CastingInput casting_input(const json& input) {
  CastingInput casting{golden_net(input.at("net")),
                       offload::scalar_type_of_name(input.at("storage_dtype").get<std::string>()),
                       offload::scalar_type_of_name(input.at("compute_dtype").get<std::string>()),
                       {}};
  golden_fill_module(*casting.net);
  const json options = input.value("options", json::object());
  const auto texts = [&](const char* key) {
    const json value = options.value(key, json());
    if (value.is_null()) return std::vector<std::string>{};
    return value.is_string() ? std::vector<std::string>{value} : value.get<std::vector<std::string>>();
  };
  casting.options = {texts("skip_modules_pattern"), texts("skip_modules_classes")};
  return casting;
}

json casting_result(const json& input) {
  const torch::NoGradGuard no_grad;
  const CastingInput casting = casting_input(input);
  const auto casts = offload::layerwise_casting(*casting.net, casting.storage, casting.compute, casting.options);
  json result = {{"stored", parameter_dtypes(*casting.net)}};
  json during = json::object();
  for (const auto& item : casting.net->named_modules("", false)) {
    const auto* linear = item.value()->as<torch::nn::Linear>();
    if (linear == nullptr) continue;
    const auto type = offload::compute_type_of(linear->weight);
    const bool is_skipped = dtype_text(linear->weight) == "float32" && casting.storage != at::kFloat;
    if (!is_skipped) during[item.key()] = offload::dtype_name(type);
  }
  at::Tensor x = casting.net->example();
  if (x.is_floating_point()) x = x.to(casting.compute);
  try {
    result["output"] = tensor_json(casting.net->forward(x));
    result["during"] = during;
  } catch (const c10::Error&) {
    result["forward"] = {{"error", "RuntimeError"}};
  }
  result["after"] = parameter_dtypes(*casting.net);
  return result;
}

std::shared_ptr<torch::nn::Module> built_in(const std::string& net, const json& expected) {
  const auto shape = [&](size_t i) { return expected.at("params").at(i).at(1).get<std::vector<int64_t>>(); };
  if (net == "Linear") return torch::nn::Linear(shape(0).at(1), shape(0).at(0)).ptr();
  if (net == "BatchNorm1d") return torch::nn::BatchNorm1d(shape(0).at(0)).ptr();
  if (net == "BatchNorm2d") return torch::nn::BatchNorm2d(shape(0).at(0)).ptr();
  if (net == "Embedding") return torch::nn::Embedding(shape(0).at(0), shape(0).at(1)).ptr();
  if (net == "LayerNorm") return torch::nn::LayerNorm(torch::nn::LayerNormOptions(shape(0))).ptr();
  if (net == "GroupNorm") return torch::nn::GroupNorm(1, shape(0).at(0)).ptr();
  if (net == "Conv1d") return torch::nn::Conv1d(shape(0).at(1), shape(0).at(0), shape(0).at(2)).ptr();
  if (net == "Conv2d")
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(shape(0).at(1), shape(0).at(0), {shape(0).at(2), shape(0).at(3)}))
        .ptr();
  if (net == "LSTM")
    return torch::nn::LSTM(torch::nn::LSTMOptions(shape(0).at(1), shape(0).at(0) / 4)
                               .num_layers(static_cast<int64_t>(expected.at("params").size()) / 4))
        .ptr();
  if (net == "GRU")
    return torch::nn::GRU(torch::nn::GRUOptions(shape(0).at(1), shape(0).at(0) / 3)
                              .num_layers(static_cast<int64_t>(expected.at("params").size()) / 4))
        .ptr();
  if (net == "MultiheadAttention")
    return torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(shape(0).at(1), 1)).ptr();
  return golden_net(net);
}

json empty_result(const GoldenCase& golden) {
  const std::string name = golden.input.at("net");
  const auto net = offload::empty_weights([&] { return built_in(name, golden.expected); },
                                          {.include_buffers = golden.input.at("include_buffers")});
  json params = json::array(), buffers = json::array();
  for (const auto& item : offload::named_tensors(*net)) {
    json line = {item.name, item.tensor.sizes().vec(), dtype_text(item.tensor), item.tensor.is_meta()};
    if (!item.is_buffer) line.push_back(item.tensor.requires_grad());
    (item.is_buffer ? buffers : params).push_back(line);
  }
  const auto* tied = dynamic_cast<const TiedNet*>(net.get());
  return {{"params", params},
          {"buffers", buffers},
          {"tie_kept", tied == nullptr ? json() : json(tied->head->weight.is_same(tied->emb->weight))}};
}

json table_result(const json& input) {
  const auto tree = plan::ModuleTree::from_json(core::Value::parse_json(input.at("model").dump()));
  const auto sizes = plan::calculate_maximum_sizes(tree);
  json rows = json::array();
  const auto lines = plan::estimate_rows(sizes, input.at("dtypes"));
  for (const auto& row : lines) rows.push_back({row.dtype, row.largest_layer, row.total, row.training});
  return {{"total", sizes.total},
          {"largest", {sizes.largest.bytes, sizes.largest.names}},
          {"rows", rows},
          {"table", plan::estimate_table(lines, input.at("name"))}};
}

at::Tensor ids_of(const json& rows) {
  std::vector<int64_t> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  return torch::tensor(values, at::kLong).view({static_cast<int64_t>(rows.size()), -1});
}

json language_model_result(const json& input) {
  const torch::NoGradGuard no_grad;
  const auto model = models::CausalLm::from_folder(golden_path(input.at("folder")));
  const at::Tensor mask = ids_of(input.at("padded_mask"));
  const int64_t padding = mask.size(1) - mask.sum().item<int64_t>();
  const at::Tensor padded = model(ids_of(input.at("padded_ids")), mask).slice(1, padding);
  const at::Tensor prompt = ids_of(json::array({input.at("greedy_prompt")}));
  const int64_t steps = input.at("greedy_steps");
  const at::Tensor ids = models::generate(model, prompt, {.max_new_tokens = steps});
  return {{"dtype", dtype_text(offload::named_tensors(model.module()).front().tensor)},
          {"logits", tensor_json(model(ids_of(input.at("input_ids"))))},
          {"left_padded_logits", tensor_json(padded)},
          {"greedy", tensor_json(ids[0].slice(0, prompt.size(1)))}};
}

json result_of(const GoldenCase& golden) {
  const json& input = golden.input;
  const std::string& family = golden.family;
  if (family == "weight") return weight_result(input);
  if (family == "folder") return folder_result(input);
  if (family == "loader") return loader_result(golden);
  if (family == "prefixed") return prefixed_result(golden);
  if (family == "extract") return {{"keys", catalog_of(input.at("keys")).under(input.at("submodules")).names()}};
  if (family == "retie") return retie_result(input);
  if (family == "hooks") return hooks_result(input);
  if (family == "dispatch" || family == "cpu_offload" || family == "disk_offload") return offload_result(golden);
  if (family == "load") return load_result(input);
  if (family == "casting") return casting_result(input);
  if (family == "empty") return empty_result(golden);
  if (family == "convert_bytes") return {{"text", plan::convert_bytes(input.at("bytes").get<int64_t>())}};
  if (family == "table") return table_result(input);
  if (family == "language_model") return language_model_result(input);
  if (family == "training") {
    const auto usage = plan::estimate_training_usage(input.at("bytes"), input.at("mixed_precision"));
    return {
        {"model", usage.model}, {"optimizer", usage.optimizer}, {"gradients", usage.gradients}, {"step", usage.step}};
  }
  return {{"unknown family", family}};
}

// Python's classes of errors about a file that is not there, or not what it should be.
bool is_file_error(const std::string& python_class) {
  static const std::set<std::string> kClasses{"FileNotFoundError", "SafetensorError", "OSError",          "EOFError",
                                              "UnpicklingError",   "JSONDecodeError", "IsADirectoryError"};
  return kClasses.count(python_class) > 0;
}

// The places of the names that the case lists: of a tied tensor the peer lists one name or all.
json with_listed_places(json given, const GoldenCase& golden) {
  if (!given.contains("placed") || !golden.expected.contains("placed")) return given;
  json listed = json::object();
  for (const auto& [name, place] : golden.expected.at("placed").items()) {
    if (given["placed"].contains(name)) listed[name] = given["placed"][name];
  }
  given["placed"] = listed;
  return given;
}

json judged_result(const GoldenCase& golden) {
  const std::string wanted = golden.expected.is_object() ? golden.expected.value("error", "") : "";
  try {
    return with_listed_places(result_of(golden), golden);
  } catch (const DataError&) {
    return golden_error(is_file_error(wanted) ? wanted : "ValueError");
  } catch (const Error&) {
    return golden_error("ValueError");
  } catch (const std::exception& error) {
    return golden_error(error.what());
  }
}

TEST(OffloadGolden, WhatThePeersDo) {
  size_t waiting = 0;
  GoldenTopic topic("offload", [&](const GoldenCase& golden) {
    const bool waits = golden.family.starts_with("bnb") || golden.family == "int8" || golden.family == "pipeline";
    waiting += waits ? 1 : 0;
    return !waits;
  });
  topic.on_quirk("prefixed-len-is-the-whole", [](const GoldenCase& golden) {
    size_t count = 0;
    const std::string prefix = golden.input.at("prefix");
    for (const std::string key : golden.input.at("keys")) count += key.starts_with(prefix) ? 1 : 0;
    return json{{"len", count}};
  });
  topic.on_quirk("pattern-text-is-taken-letter-by-letter", single_pattern);
  topic.on_quirk("casting-breaks-ties", at_rest_after_an_error);
  topic.on_quirk("compute-dtype-must-fit-the-rest", at_rest_after_an_error);
  topic.on_quirk("tie-lost-in-empty-model", [](const GoldenCase& golden) {
    return golden.expected.contains("tie_kept") ? json{{"tie_kept", true}} : json::object();
  });
  // A hook on a layer leaves the layers behind it recording: the net's output has a gradient.
  topic.on_quirk("no-grad-lost-when-chained", [](const GoldenCase& golden) {
    for (const auto& action : golden.input.at("actions")) {
      if (action.size() > 1 && action.at(1) == "") return json::object();
    }
    return json{{"output_requires_grad", golden.expected.at("output_requires_grad")}};
  });
  topic.on_every_case(tensors_named_by_the_map);
  topic.on_every_case(buffers_with_their_modules);
  topic.for_each([&](const GoldenCase& golden) {
    // A net that computes in bfloat16 is right to one unit in the last place, 2^-7.
    const bool is_coarse = golden.input.value("compute_dtype", "") == "bfloat16";
    // Logits in float32 are right to 1e-5, closer than the cases ask for.
    const double asked =
        golden.expected.is_object() ? golden.expected.value("tolerance", is_coarse ? 1e-2 : 2e-5) : 2e-5;
    const double absolute = golden.family == "language_model" && asked < 1e-3 ? 1e-5 : asked;
    topic.tolerate({.relative = is_coarse ? 1e-2 : 1e-5, .absolute = absolute});
    topic.judge(comparable(golden), judged_result(golden));
  });
  topic.finish();
  std::cout << "golden offload: " << waiting << " cases wait for quantization and inference pipelines" << std::endl;
}

}  // namespace
}  // namespace hasten::testing
