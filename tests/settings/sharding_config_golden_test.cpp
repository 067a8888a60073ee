// Settings of FSDP and DeepSpeed against Accelerate's plugins and DeepSpeed's own reading: variables, arguments, unit
// rules, to-fsdp2, "auto", resolved values, batch numbers. The schedules of the topic are tests/optim/schedulers/'s.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <type_traits>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/settings/deepspeed_plugin.h"
#include "hasten/settings/fsdp_plugin.h"
#include "hasten/settings/wrap_policy.h"
#include "settings/deepspeed_keys.h"
#include "settings/sharding_config_differences.h"
#include "support/golden.h"

namespace hasten::testing {
namespace {

using core::Value;
using nlohmann::json;
using namespace hasten::plan;

Value value_of(const json& given) {
  return Value::parse_json(given.dump());
}

// A value of another type than the setting's is refused by the compiler here, and by the peer as it runs.
template <class T>
T typed(const json& value, const char* wanted) {
  const bool fits = std::is_same_v<T, bool> ? value.is_boolean()
                    : std::is_integral_v<T> ? value.is_number_integer()
                                            : value.is_string();
  if (!fits) throw UsageError(Origin{"test"}, value.dump(), ": expected ", wanted, ".");
  return value.get<T>();
}
bool flag(const json& value) {
  return typed<bool>(value, "true or false");
}
int64_t count(const json& value) {
  return typed<int64_t>(value, "a whole number");
}
std::string word(const json& value) {
  return typed<std::string>(value, "text");
}

// Infinity as the cases write it.
json json_of(const Value& value) {
  if (value.is_map()) {
    json map = json::object();
    for (const auto& [key, each] : value.as_map()) map[key] = json_of(each);
    return map;
  }
  if (value.is_number() && !value.is_int() && std::isnan(value.as_double())) return "nan";
  if (value.is_number() && !value.is_int() && std::isinf(value.as_double()))
    return value.as_double() > 0 ? "inf" : "-inf";
  return json::parse(value.to_json());
}

// Python splits a text of class names at its commas.
std::vector<std::string> names_of(const json& value) {
  if (!value.is_string()) return value.get<std::vector<std::string>>();
  std::vector<std::string> names;
  std::istringstream words(value.get<std::string>() + ",");
  for (std::string word; std::getline(words, word, ',');) names.push_back(word);
  return names;
}

Environment environment_of(const json& input) {
  return Environment::of(input.value("env", json::object()).get<std::map<std::string, std::string>>());
}

template <class T>
json named(const std::optional<T>& value) {
  if (!value) return nullptr;
  return name_of(*value);
}
template <class T>
json plain(const std::optional<T>& value) {
  if (!value) return nullptr;
  return *value;
}

// ---- fsdp_env/, fsdp_args/, fsdp_cpu/, fsdp_precision/

FsdpPlugin fsdp_plugin(const json& args) {
  FsdpPlugin plugin;
  for (const auto& [key, value] : args.items()) {
    const auto text = [&] { return value.is_string() ? value.get<std::string>() : value.dump(); };
    if (value.is_null()) continue;
    if (key == "fsdp_version")
      plugin.fsdp_version = static_cast<int>(count(value));
    else if (key == "sharding_strategy")
      plugin.sharding_strategy = text();
    else if (key == "reshard_after_forward")
      plugin.reshard_after_forward = value_of(value);
    else if (key == "auto_wrap_policy")
      plugin.auto_wrap_policy = text();
    else if (key == "transformer_cls_names_to_wrap")
      plugin.transformer_cls_names_to_wrap = names_of(value);
    else if (key == "min_num_params")
      plugin.min_num_params = count(value);
    else if (key == "backward_prefetch")
      plugin.backward_prefetch = text();
    else if (key == "forward_prefetch")
      plugin.forward_prefetch = flag(value);
    else if (key == "limit_all_gathers")
      plugin.limit_all_gathers = flag(value);
    else if (key == "use_orig_params")
      plugin.use_orig_params = flag(value);
    else if (key == "cpu_offload")
      plugin.cpu_offload = flag(value);
    else if (key == "sync_module_states")
      plugin.sync_module_states = flag(value);
    else if (key == "cpu_ram_efficient_loading")
      plugin.cpu_ram_efficient_loading = flag(value);
    else if (key == "state_dict_type")
      plugin.state_dict_type = text();
    else if (key == "activation_checkpointing")
      plugin.activation_checkpointing = flag(value);
    else if (key == "activation_checkpointing_offload")
      plugin.activation_checkpointing_offload = flag(value);
    else if (key == "ignored_modules")
      plugin.ignored_modules =
          value.is_string() ? std::vector<std::string>{text()} : value.get<std::vector<std::string>>();
    else if (key == "mixed_precision_policy")
      plugin.mixed_precision_policy = value_of(value);
    else
      throw std::runtime_error("a setting of the case that this test does not know: " + key);
  }
  return plugin;
}

json shown(const FsdpSettings& s) {
  json wrap = named(s.auto_wrap_policy);
  if (wrap == "NO_WRAP") wrap = nullptr;  // the peer's is none at all
  json strategy = named(s.sharding_strategy);
  if (strategy == "HYBRID_SHARD_ZERO2") strategy = "_HYBRID_SHARD_ZERO2";  // torch's enumerator
  json dtypes = nullptr;
  if (s.mixed_precision_policy) {
    dtypes = {{"param_dtype", s.mixed_precision_policy->param_dtype},
              {"reduce_dtype", s.mixed_precision_policy->reduce_dtype}};
    dtypes[s.fsdp_version == 1 ? "buffer_dtype" : "output_dtype"] =
        s.fsdp_version == 1 ? s.mixed_precision_policy->buffer_dtype : s.mixed_precision_policy->output_dtype;
  }
  json ignored = nullptr;
  if (s.ignored_modules.size() == 1) ignored = s.ignored_modules[0];
  return {{"fsdp_version", s.fsdp_version},
          {"sharding_strategy", strategy},
          {"reshard_after_forward", plain(s.reshard_after_forward)},
          {"cpu_offload", s.cpu_offload},
          {"backward_prefetch", named(s.backward_prefetch)},
          {"forward_prefetch", plain(s.forward_prefetch)},
          {"limit_all_gathers", s.limit_all_gathers},
          {"state_dict_type", name_of(s.state_dict_type)},
          {"state_dict_offload_to_cpu", plain(s.state_dict_config.offload_to_cpu)},
          {"state_dict_rank0_only", plain(s.state_dict_config.rank0_only)},
          {"auto_wrap_policy", wrap},
          {"transformer_cls_names_to_wrap", plain(s.transformer_cls_names_to_wrap)},
          {"min_num_params", plain(s.min_num_params)},
          {"use_orig_params", plain(s.use_orig_params)},
          {"sync_module_states", plain(s.sync_module_states)},
          {"cpu_ram_efficient_loading", s.cpu_ram_efficient_loading},
          {"activation_checkpointing", s.activation_checkpointing},
          {"activation_checkpointing_offload", s.activation_checkpointing_offload},
          {"ignored_modules", ignored},
          {"mixed_precision_policy", dtypes}};
}

json fsdp_case(const json& input) {
  auto settings = resolve_fsdp(fsdp_plugin(input.value("args", json::object())), environment_of(input));
  if (input.contains("set_mixed_precision"))
    set_mixed_precision(settings, input["set_mixed_precision"].at("mixed_precision").get<std::string>());
  json given = shown(settings);
  // A text of names that no policy reads stays one text in Python.
  const auto args = input.value("args", json::object());
  if (args.contains("transformer_cls_names_to_wrap") && args["transformer_cls_names_to_wrap"].is_string() &&
      settings.auto_wrap_policy != AutoWrapPolicy::kTransformer) {
    given["transformer_cls_names_to_wrap"] = join(*settings.transformer_cls_names_to_wrap, ",");
  }
  if (args.value("ignored_modules", json()).is_array()) given["ignored_modules"] = settings.ignored_modules;
  // Python keeps a strategy's number.
  if (args.value("sharding_strategy", json()).is_number() && settings.sharding_strategy)
    given["sharding_strategy"] = static_cast<int>(*settings.sharding_strategy);
  return given;
}

// ---- fsdp_wrap/

class Tree {
 public:
  WrapModule read(const json& tree, const std::string& name) {
    WrapModule node{.name = name, .class_name = tree.at("class").get<std::string>()};
    for (const auto& each : tree.value("params", json::array())) {
      int64_t numel = 1;
      for (const auto& size : each.at("shape")) numel *= size.get<int64_t>();
      node.parameters.push_back({each.at("name").get<std::string>(), numel, id(each)});
    }
    for (const auto& child : tree.value("children", json::array())) {
      if (child[1].contains("same_as")) continue;
      node.children.push_back(read(child[1], child[0].get<std::string>()));
    }
    return node;
  }

 private:
  const void* id(const json& parameter) {
    if (parameter.contains("tie")) return &ties_[parameter.at("tie").get<int>()];
    ids_.push_back(std::make_unique<int>());
    return ids_.back().get();
  }
  std::map<int, int> ties_;
  std::vector<std::unique_ptr<int>> ids_;
};

json wrap_case(const json& input, const json& models) {
  Tree tree;
  const auto model = tree.read(models.at(input.at("model").get<std::string>()), "");
  const auto settings = resolve_fsdp(fsdp_plugin(input.at("args")), Environment::of({}));
  WrapOptions options{.version = settings.fsdp_version, .ignored = input.value("ignored", std::vector<std::string>())};
  if (settings.auto_wrap_policy == AutoWrapPolicy::kTransformer) options.rule = WrapRule::kTransformer;
  if (settings.auto_wrap_policy == AutoWrapPolicy::kSize) options.rule = WrapRule::kSize;
  options.classes = settings.transformer_cls_names_to_wrap.value_or(std::vector<std::string>());
  options.min_num_params = settings.min_num_params.value_or(0);
  json units = json::array();
  for (const auto& unit : plan_units(model, options)) units.push_back({unit.module, unit.parameters});
  return {{"units", units}};
}

// ---- ds_*/

DeepSpeedPlugin ds_plugin(const json& args) {
  DeepSpeedPlugin plugin;
  for (const auto& [key, value] : args.items()) {
    if (value.is_null()) continue;
    if (key == "hf_ds_config")
      plugin.hf_ds_config = value_of(value);
    else if (key == "gradient_accumulation_steps")
      plugin.gradient_accumulation_steps = value_of(value);
    else if (key == "gradient_clipping")
      plugin.gradient_clipping = value_of(value);
    else if (key == "zero_stage")
      plugin.zero_stage = value_of(value);
    else if (key == "is_train_batch_min")
      plugin.is_train_batch_min = flag(value);
    else if (key == "offload_optimizer_device")
      plugin.offload_optimizer_device = word(value);
    else if (key == "offload_param_device")
      plugin.offload_param_device = word(value);
    else if (key == "offload_optimizer_nvme_path")
      plugin.offload_optimizer_nvme_path = word(value);
    else if (key == "offload_param_nvme_path")
      plugin.offload_param_nvme_path = word(value);
    else if (key == "zero3_init_flag")
      plugin.zero3_init_flag = flag(value);
    else if (key == "zero3_save_16bit_model")
      plugin.zero3_save_16bit_model = flag(value);
    else if (key == "transformer_moe_cls_names")
      plugin.transformer_moe_cls_names = word(value);
    else
      throw std::runtime_error("a setting of the case that this test does not know: " + key);
  }
  return plugin;
}

json plugin_case(const json& input) {
  const auto s = resolve_deepspeed_plugin(ds_plugin(input.value("args", json::object())), environment_of(input));
  return {{"attributes",
           {{"gradient_accumulation_steps", json_of(s.gradient_accumulation_steps)},
            {"gradient_clipping", json_of(s.gradient_clipping)},
            {"zero_stage", json_of(s.zero_stage)},
            {"is_train_batch_min", s.is_train_batch_min},
            {"offload_optimizer_device", s.offload_optimizer_device},
            {"offload_param_device", s.offload_param_device},
            {"offload_optimizer_nvme_path", s.offload_optimizer_nvme_path},
            {"offload_param_nvme_path", s.offload_param_nvme_path},
            {"zero3_init_flag", s.zero3_init_flag},
            {"zero3_save_16bit_model", s.zero3_save_16bit_model}}},
          {"config", json_of(s.config.config())},
          {"is_zero2", s.config.is_zero2()},
          {"is_zero3", s.config.is_zero3()},
          {"is_offload", s.config.is_offload()}};
}

json precision_case(const json& input) {
  auto settings = resolve_deepspeed_plugin({.hf_ds_config = value_of(input.at("config"))}, Environment::of({}));
  set_mixed_precision(settings, input.at("mixed_precision").get<std::string>());
  return {{"config", json_of(settings.config.config())}};
}

AutoInputs::Given given_of(const std::string& kind) {
  if (kind == "dummy") return AutoInputs::Given::kDummy;
  return kind == "dummy_callable" ? AutoInputs::Given::kDummyWithCallable : AutoInputs::Given::kReal;
}

json auto_case(const json& input) {
  auto plugin = ds_plugin(input.value("plugin", json::object()));
  if (input.contains("config")) plugin.hf_ds_config = value_of(input.at("config"));
  auto settings = resolve_deepspeed_plugin(plugin, Environment::of({}));
  set_mixed_precision(settings, input.value("mixed_precision", "no"));
  AutoInputs own{.world_size = input.value("num_processes", 1),
                 .split_batches = input.value("split_batches", false),
                 .gradient_accumulation_steps = input.value("gradient_accumulation_steps", int64_t{1}),
                 .lr = input.value("lr", 1e-3),
                 .weight_decay = input.value("weight_decay", 0.0)};
  settings.is_train_batch_min = input.value("is_train_batch_min", true);
  for (const auto& size : input.at("batch_sizes")) {
    own.batch_sizes.push_back(size.is_null() ? std::nullopt : std::optional(size.get<int64_t>()));
  }
  if (input.contains("hidden_size")) {
    own.hidden_size = input["hidden_size"].get<int64_t>();
  } else if (input.contains("hidden_sizes")) {
    const auto sizes = input["hidden_sizes"].get<std::vector<int64_t>>();
    own.hidden_size = *std::max_element(sizes.begin(), sizes.end());
  }
  if (input.contains("optimizer") && input["optimizer"].is_string()) own.optimizer = given_of(input["optimizer"]);
  if (input.contains("scheduler") && input["scheduler"].is_string()) own.scheduler = given_of(input["scheduler"]);
  const auto arguments = input.value("scheduler_args", json::object());
  if (arguments.contains("total_num_steps") && arguments["total_num_steps"].is_number())
    own.total_num_steps = arguments["total_num_steps"].get<int64_t>();
  own.warmup_num_steps = arguments.value("warmup_num_steps", int64_t{0});
  fill_auto(settings, own);
  require_filled(settings);
  const bool dummy = own.optimizer == AutoInputs::Given::kDummy;
  json optimizer = nullptr;
  if (own.optimizer == AutoInputs::Given::kReal) {
    const auto device = settings.config.get_value("zero_optimization.offload_optimizer.device", "none");
    const bool stays = device == Value("none") || settings.config.is_false("zero_force_ds_cpu_optimizer");
    optimizer = (stays ? "" : "CpuOffloaded") + input["optimizer"].get<std::string>();
  }
  return {
      {"config", json_of(settings.config.config())},
      {"optimizer", optimizer},
      {"has_model_parameters", dummy},
      {"has_lr_scheduler", own.scheduler == AutoInputs::Given::kDummyWithCallable && dummy},
      {"accelerator_gradient_accumulation_steps", json_of(settings.config.get_value("gradient_accumulation_steps"))}};
}

std::optional<int64_t> number_at(const json& config, const char* key) {
  if (!config.contains(key) || config[key].is_null()) return std::nullopt;
  const double value = config[key].is_number() ? config[key].get<double>() : 0.5;
  if (value != std::floor(value)) throw UsageError(Origin{"deepspeed"}, key, " is ", config[key].dump());
  return static_cast<int64_t>(value);
}

json batch_case(const json& input) {
  const auto& config = input.at("config");
  const auto numbers =
      solve_batch(number_at(config, "train_batch_size"), number_at(config, "train_micro_batch_size_per_gpu"),
                  number_at(config, "gradient_accumulation_steps"), input.at("world").get<int>());
  return {{"train_batch_size", numbers.train},
          {"train_micro_batch_size_per_gpu", numbers.micro},
          {"gradient_accumulation_steps", numbers.accumulation}};
}

// torch's dtype of a DeepSpeed name; the name itself for others.
std::string torch_dtype(std::string name) {
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "fp16" || name == "half") return "float16";
  if (name == "fp32" || name == "float") return "float32";
  return name == "bf16" ? "bfloat16" : name;
}

// DeepSpeed writes the names of its own optimizers in small letters.
std::string optimizer_name(const std::string& type) {
  std::string small = type;
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* own : {"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"}) {
    if (small == own) return small;
  }
  return type;
}

std::string short_name(const std::string& name) {
  return name.starts_with("stage3_") ? name.substr(7) : name;
}

// A section with all values; `path` with its dot.
json section_of(const ResolvedDeepSpeed& resolved, const std::string& path) {
  json section = json::object();
  for (const auto& key : deepspeed_keys()) {
    const std::string own = key.path;
    if (!own.starts_with(path) || own.find('.', path.size()) != std::string::npos) continue;
    section[short_name(own.substr(path.size()))] = json_of(resolved.at(own));
  }
  if (section.contains("nvme_path") && section["nvme_path"].is_string()) {
    section["nvme_path"] = std::filesystem::path(section["nvme_path"].get<std::string>()).filename().string();
  }
  return section;
}

// What differs from the defaults, as the cases list it.
json resolved_case(const json& input) {
  const DeepSpeedConfig config(value_of(input.at("config")));
  const auto resolved = resolve_deepspeed(config, input.value("world", 1));
  json given{{"train_batch_size", resolved.batch.train},
             {"train_micro_batch_size_per_gpu", resolved.batch.micro},
             {"gradient_accumulation_steps", resolved.batch.accumulation}};
  json zero = json::object();
  for (const auto& key : deepspeed_keys()) {
    const std::string path = key.path;
    const auto value = json_of(resolved.at(path));
    if (path.starts_with("zero_optimization.")) {
      const std::string name = path.substr(18);
      // Old names and DeepSpeed's own inner keys are not listed.
      if (name.find('.') != std::string::npos || name.starts_with("cpu_offload") ||
          name == "stage3_gather_fp16_weights_on_model_save")
        continue;
      if (name.starts_with("offload_")) {
        if (resolved.is_given(path)) zero[name] = section_of(resolved, path + ".");
      } else if (value != json::parse(key.otherwise) && !(name == "overlap_comm" && value == false)) {
        zero[short_name(name)] = value;
      }
    } else if (path == "fp16" || path == "bf16") {
      if (resolved.on(path + ".enabled")) given[path] = section_of(resolved, path + ".");
    } else if (path == "optimizer" || path == "scheduler") {
      if (!resolved.is_given(path + ".type")) continue;
      const std::string type = resolved.text(path + ".type");
      given[path] = {path == "optimizer" ? optimizer_name(type) : type, json_of(resolved.at(path + ".params"))};
    } else if (path == "aio") {
      // DeepSpeed's own section lists no thread_count, which came later.
      json section = section_of(resolved, "aio.");
      section.erase("thread_count");
      json plain = section;
      for (auto& [name, member] : plain.items()) member = json::parse(find_deepspeed_key("aio." + name)->otherwise);
      if (section != plain) given[path] = section;
    } else if (path.find('.') == std::string::npos && config.get_value(path) == Value("auto")) {
      given[path] = "auto";  // nothing has filled it in
    } else if (path == "data_types.grad_accum_dtype") {
      if (!value.is_null()) given["grad_accum_dtype"] = value;
    } else if (path.find('.') == std::string::npos && path != "steps_per_print" && !given.contains(path) &&
               (key.type == KeyType::kBool || key.type == KeyType::kReal || key.type == KeyType::kChoice) &&
               resolved.is_given(path)) {
      given[path] = path.ends_with("communication_data_type") ? json(torch_dtype(resolved.text(path))) : value;
    }
  }
  if (!zero.empty()) given["zero"] = zero;
  return given;
}

// The value at a path, a section with the members that `form` has. A section that is off or absent is null.
json in_form(const ResolvedDeepSpeed& resolved, const std::string& path, const json& form) {
  if (path == "zero_optimization.overlap_comm") return resolved.on(path);
  if (path == "zero_optimization.stage3_gather_fp16_weights_on_model_save") return resolved.on(path);
  if (form.is_array() && (path == "optimizer" || path == "scheduler")) {
    if (!resolved.is_given(path + ".type")) return json::array({nullptr, nullptr});
    return {resolved.text(path + ".type"), json_of(resolved.at(path + ".params"))};
  }
  if (form.is_object()) {
    json section = json::object();
    for (const auto& [member, value] : form.items()) section[member] = in_form(resolved, path + "." + member, value);
    return section;
  }
  const auto* key = find_deepspeed_key(path);
  if (key == nullptr) throw std::runtime_error("a value of DeepSpeed that this test does not know: " + path);
  if (key->type != KeyType::kSection) return json_of(resolved.at(path));
  const bool is_on =
      find_deepspeed_key(path + ".enabled") != nullptr ? resolved.on(path + ".enabled") : resolved.is_given(path);
  return is_on || form.is_boolean() ? json(is_on) : json();
}

// The key of DeepSpeed's configuration that an attribute of its class has.
std::string path_of(const std::string& attribute) {
  const std::map<std::string, std::string> others = {{"zero", "zero_optimization"},
                                                     {"zero_config", "zero_optimization"},
                                                     {"zero_optimization_stage", "zero_optimization.stage"},
                                                     {"zero_enabled", "zero_optimization.stage"},
                                                     {"float16_config", "fp16"},
                                                     {"bfloat16_config", "bf16"},
                                                     {"fp16_enabled", "fp16.enabled"},
                                                     {"bf16_enabled", "bf16.enabled"},
                                                     {"bfloat16_enabled", "bf16.enabled"},
                                                     {"load_universal_checkpoint", "checkpoint.load_universal"},
                                                     {"flops_profiler_config", "flops_profiler"},
                                                     {"comms_config", "comms_logger"},
                                                     {"aio_config", "aio"}};
  if (const auto found = others.find(attribute); found != others.end()) return found->second;
  for (const char* start : {"optimizer_", "scheduler_", "torch_autocast_"}) {
    if (!attribute.starts_with(start)) continue;
    const std::string rest = attribute.substr(std::string(start).size());
    return std::string(start, std::string(start).size() - 1) + "." + (rest == "name" ? "type" : rest);
  }
  for (const char* section : {"", "data_types.", "checkpoint."}) {
    if (find_deepspeed_key(section + attribute) != nullptr) return section + attribute;
  }
  return attribute;
}

// Every value that the case lists, under the names of `expected`.
json defaults_case(const GoldenCase& golden) {
  const auto resolved =
      resolve_deepspeed(DeepSpeedConfig(value_of(golden.input.at("config"))), golden.input.value("world", 1));
  json given = {{"train_batch_size", resolved.batch.train},
                {"train_micro_batch_size_per_gpu", resolved.batch.micro},
                {"gradient_accumulation_steps", resolved.batch.accumulation}};
  for (const auto& [name, form] : golden.expected.items()) {
    if (given.contains(name)) continue;
    given[name] = name == "zero_enabled" ? json(resolved.stage > 0) : in_form(resolved, path_of(name), form);
  }
  return given;
}

json carry_out(const GoldenCase& golden, const json& models) {
  const auto& family = golden.family;
  if (family == "fsdp_env" || family == "fsdp_args" || family == "fsdp_cpu" || family == "fsdp_precision")
    return fsdp_case(golden.input);
  if (family == "fsdp_wrap") return wrap_case(golden.input, models);
  if (family == "to_fsdp2") return {{"config", json_of(convert_to_fsdp2(value_of(golden.input.at("config"))).config)}};
  if (family == "ds_plugin") return plugin_case(golden.input);
  if (family == "ds_precision") return precision_case(golden.input);
  if (family == "ds_auto") return auto_case(golden.input);
  if (family == "ds_batch") return batch_case(golden.input);
  if (family == "ds_resolved") {
    json given = resolved_case(golden.input);
    // A dtype has several names.
    const char* key = "communication_data_type";
    if (given.contains(key) && golden.expected.contains(key) && golden.expected[key].is_string() &&
        json(torch_dtype(golden.expected[key].get<std::string>())) == given[key])
      given[key] = golden.expected[key];
    return given;
  }
  if (family == "ds_defaults") return defaults_case(golden);
  throw std::runtime_error("a family that this test does not know: " + family);
}

// Errors are compared by kind: every error of settings here is Python's of that case.
json given_for(const GoldenCase& golden, const json& models) {
  try {
    return carry_out(golden, models);
  } catch (const UsageError&) {
    return {{"error", golden.expected.value("error", "UsageError")}};
  } catch (const DataError&) {
    return {{"error", golden.expected.value("error", "DataError")}};
  } catch (const std::exception& error) {
    return {{"failed", error.what()}};
  }
}

TEST(ShardingConfigGolden, settings_of_fsdp_and_deepspeed_are_those_of_the_peers) {
  GoldenTopic topic("sharding_config", [](const GoldenCase& golden) { return golden.family != "ds_schedule"; });
  const json models = topic.beside().value("models", json::object());
  topic.tolerate({.relative = 1e-12, .absolute = 1e-15});
  sharding_config::add_differences(topic);
  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, given_for(golden, models)); });
  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
