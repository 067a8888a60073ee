// See deepspeed_plugin.h.
#include "hasten/settings/deepspeed_plugin.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "settings/origin.h"

namespace hasten::plan {
namespace {

using core::Value;

// Names without the blanks around them; those of blanks alone are left out.
std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& part : core::split(text, ',')) {
    if (const auto name = core::trim(part, " \t"); !name.empty()) names.emplace_back(name);
  }
  return names;
}

template <class T>
T parse_number(const std::string& given, const std::string& variable, const char* expected) {
  const std::string_view text = core::trim(given, " \t");
  T value{};
  const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
  if (got.ec == std::errc() && got.ptr == text.data() + text.size()) return value;
  throw UsageError(kDeepSpeed, variable, "=", given, ": expected ", expected, ".");
}

/// Reads a plugin row by row.
class PluginReader {
 public:
  PluginReader(const DeepSpeedPlugin& plugin, const Environment& environment)
      : plugin_(plugin), environment_(environment) {}

  DeepSpeedSettings all() {
    numbers();
    places();
    refuse_msamp();
    Value file = plugin_.hf_ds_config;
    if (file.is_null()) {
      const auto text = variable("ACCELERATE_DEEPSPEED_CONFIG_FILE");
      if (text && *text != "none") file = *text;
    } else if (file == Value("none")) {
      file = nullptr;
    }
    if (file.is_null()) {
      from_arguments();
    } else {
      from_file(DeepSpeedConfig::read(file));
    }
    if (const auto* own = s_.config.find("steps_per_print")) s_.steps_per_print = *own;
    s_.config.config()["steps_per_print"] = std::numeric_limits<double>::infinity();
    init_flag();
    return std::move(s_);
  }

 private:
  // As the peer, an empty variable is a value, and mostly a wrong one.
  std::optional<std::string> variable(const std::string& name) const {
    const auto found = environment_.variables().find(name);
    return found == environment_.variables().end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<bool> flag(const std::string& name) const {
    const auto text = variable(name);
    if (text && text->empty()) throw UsageError(kDeepSpeed, name, " is empty; expected true or false.");
    return environment_.flag(name);
  }

  void numbers() {
    s_.writes_accumulation = !plugin_.gradient_accumulation_steps.is_null();
    s_.writes_clipping = !plugin_.gradient_clipping.is_null();
    s_.is_train_batch_min = plugin_.is_train_batch_min;
    if (s_.writes_accumulation) {
      s_.gradient_accumulation_steps = plugin_.gradient_accumulation_steps;
    } else if (const auto text = variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")) {
      const bool digits = !text->empty() && text->find_first_not_of("0123456789") == std::string::npos;
      s_.gradient_accumulation_steps =
          digits ? Value(parse_number<int64_t>(*text, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "a number"))
                 : Value(*text);
      s_.writes_accumulation = digits;
    }
    if (s_.writes_clipping) {
      s_.gradient_clipping = plugin_.gradient_clipping;
    } else if (const auto text = variable("ACCELERATE_GRADIENT_CLIPPING")) {
      s_.writes_clipping = true;
      s_.gradient_clipping =
          *text == "auto" ? Value("auto")
                          : Value(parse_number<double>(*text, "ACCELERATE_GRADIENT_CLIPPING", "a number or auto"));
    }
    if (!plugin_.zero_stage.is_null()) {
      s_.zero_stage = plugin_.zero_stage;
    } else if (const auto text = variable("ACCELERATE_DEEPSPEED_ZERO_STAGE")) {
      s_.zero_stage = parse_number<int64_t>(*text, "ACCELERATE_DEEPSPEED_ZERO_STAGE", "a stage, 0 to 3");
    }
  }

  void places() {
    const auto read = [&](std::string& own, const std::optional<std::string>& given, const char* name) {
      own = given ? *given : variable(name).value_or("none");
    };
    read(s_.offload_optimizer_device, plugin_.offload_optimizer_device,
         "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE");
    read(s_.offload_param_device, plugin_.offload_param_device, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE");
    read(s_.offload_optimizer_nvme_path, plugin_.offload_optimizer_nvme_path,
         "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH");
    read(s_.offload_param_nvme_path, plugin_.offload_param_nvme_path, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH");
    s_.zero3_save_16bit_model = plugin_.zero3_save_16bit_model.value_or(
        environment_.flag("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL").value_or(false));
    s_.transformer_moe_cls_names = names_in(
        plugin_.transformer_moe_cls_names.value_or(variable("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES").value_or("")));
  }

  void refuse_msamp() const {
    if (!plugin_.enable_msamp.value_or(variable("ACCELERATE_FP8_BACKEND") == "MSAMP")) return;
    throw UsageError(
        kDeepSpeed,
        "enable_msamp asks for MS-AMP, which is not built. Set mixed_precision = kFp8 with a recipe of Fp8Options.");
  }

  void from_arguments() {
    const auto place = [](const std::string& device, const std::string& path) {
      return Value::map({{"device", device}, {"nvme_path", device == "nvme" ? Value(path) : Value()}});
    };
    Value config = Value::map({{"train_batch_size", "auto"},
                               {"train_micro_batch_size_per_gpu", "auto"},
                               {"gradient_accumulation_steps", s_.gradient_accumulation_steps}});
    config["zero_optimization"] =
        Value::map({{"stage", s_.zero_stage},
                    {"offload_optimizer", place(s_.offload_optimizer_device, s_.offload_optimizer_nvme_path)},
                    {"offload_param", place(s_.offload_param_device, s_.offload_param_nvme_path)},
                    {"stage3_gather_16bit_weights_on_model_save", s_.zero3_save_16bit_model}});
    const Value& clip = s_.gradient_clipping;
    if (!clip.is_number() || clip.as_double() != 0) config["gradient_clipping"] = clip;
    s_.config = DeepSpeedConfig(std::move(config), "the DeepSpeed settings");
  }

  void from_file(DeepSpeedConfig config) {
    fields_beside();
    s_.config = std::move(config);
    const bool writes = s_.config.find("gradient_accumulation_steps") != nullptr;
    if (!writes) s_.config.config()["gradient_accumulation_steps"] = 1;
    if (s_.config.find("zero_optimization") == nullptr) {
      throw UsageError(kDeepSpeed, s_.config.source(),
                       " has no zero_optimization. Write {\"zero_optimization\": {\"stage\": 2}}, for example.");
    }
    const Value* zero = s_.config.find("zero_optimization");
    if (!zero->is_map() && !zero->is_null()) {
      throw UsageError(kDeepSpeed, "zero_optimization is ", zero->to_json(), " in ", s_.config.source(),
                       "; expected a map, such as {\"stage\": 2}.");
    }
    s_.writes_accumulation = writes;
    s_.writes_clipping = s_.config.find("gradient_clipping") != nullptr;
    const std::vector<std::pair<std::string, Value>> own = {
        {"gradient_accumulation_steps", s_.gradient_accumulation_steps},
        {"gradient_clipping", s_.gradient_clipping},
        {kZero + "stage", s_.zero_stage},
        {kZero + "offload_optimizer.device", s_.offload_optimizer_device},
        {kZero + "offload_param.device", s_.offload_param_device},
        {kZero + "offload_param.nvme_path", s_.offload_param_nvme_path},
        {kZero + "offload_optimizer.nvme_path", s_.offload_optimizer_nvme_path},
        {kZero + "stage3_gather_16bit_weights_on_model_save", s_.zero3_save_16bit_model}};
    s_.config.fill(own);
    take_back("gradient_accumulation_steps", s_.gradient_accumulation_steps);
    take_back("gradient_clipping", s_.gradient_clipping);
    take_back(kZero + "stage", s_.zero_stage);
    take_text(kZero + "offload_optimizer.device", s_.offload_optimizer_device);
    take_text(kZero + "offload_param.device", s_.offload_param_device);
    take_text(kZero + "offload_optimizer.nvme_path", s_.offload_optimizer_nvme_path);
    take_text(kZero + "offload_param.nvme_path", s_.offload_param_nvme_path);
    const Value save = s_.config.get_value(kZero + "stage3_gather_16bit_weights_on_model_save");
    if (save.is_bool()) s_.zero3_save_16bit_model = save.as_bool();
  }

  void take_back(const std::string& key, Value& own) const {
    const auto* value = s_.config.find(key);
    if (value != nullptr && !value->is_null() && !s_.config.is_auto(key)) own = *value;
  }
  void take_text(const std::string& key, std::string& own) const {
    const auto* value = s_.config.find(key);
    if (value != nullptr && value->is_string() && !s_.config.is_auto(key)) own = value->as_string();
  }

  // Settings of the launcher's configuration beside a file, which would be ignored.
  void fields_beside() const {
    static const std::vector<std::string> refused = {
        "gradient_accumulation_steps", "gradient_clipping",      "zero_stage",
        "offload_optimizer_device",    "offload_param_device",   "offload_param_nvme_path",
        "offload_optimizer_nvme_path", "zero3_save_16bit_model", "mixed_precision"};
    std::vector<std::string> found;
    for (const auto& field : names_in(variable("ACCELERATE_CONFIG_DS_FIELDS").value_or(""))) {
      if (std::find(refused.begin(), refused.end(), field) != refused.end()) found.push_back(field);
    }
    if (found.empty()) return;
    throw UsageError(kDeepSpeed, "the launcher's configuration has ", join(found),
                     " beside deepspeed_config_file, which would not be "
                     "read. Write them into the DeepSpeed file, and remove them there.");
  }

  void init_flag() {
    const bool zero3 = s_.config.is_zero3();
    s_.zero3_init_flag = plugin_.zero3_init_flag.value_or(flag("ACCELERATE_DEEPSPEED_ZERO3_INIT").value_or(zero3));
    if (s_.zero3_init_flag && !zero3) {
      s_.notes.push_back("zero3_init_flag counts at stage 3 only; it is read as false");
      s_.zero3_init_flag = false;
    }
  }

  const DeepSpeedPlugin& plugin_;
  const Environment& environment_;
  DeepSpeedSettings s_;
};

}  // namespace

DeepSpeedSettings resolve_deepspeed_plugin(const DeepSpeedPlugin& plugin, const Environment& environment) {
  return PluginReader(plugin, environment).all();
}

void set_mixed_precision(DeepSpeedSettings& settings, const std::string& mixed_precision) {
  auto& config = settings.config.config();
  const bool fp16 = mixed_precision == "fp16", bf16 = mixed_precision == "bf16" || mixed_precision == "fp8";
  if (fp16 && !config.contains("fp16")) config["fp16"] = Value::map({{"enabled", true}, {"auto_cast", true}});
  if (bf16 && !config.contains("bf16")) config["bf16"] = Value::map({{"enabled", true}});
  const char* other = fp16 ? "bf16" : "fp16";
  for (const char* dtype : {"fp16", "bf16"}) {
    const auto* section = config.find(dtype);
    const bool may_be_null = mixed_precision == "no" || dtype != std::string(other);
    if (section == nullptr || section->is_map() || (section->is_null() && may_be_null)) continue;
    throw UsageError(kDeepSpeed, dtype, " is ", section->to_json(), " in ", settings.config.source(),
                     "; expected a map, such as {\"enabled\": \"auto\"}.");
  }
  const Value enabled = settings.config.get_value(std::string(other) + ".enabled");
  const bool is_on =
      enabled == Value(true) || enabled == Value("true") || enabled == Value("True") || enabled == Value("TRUE");
  if (mixed_precision != "no" && is_on) {
    throw UsageError(kDeepSpeed, "mixed_precision is ", mixed_precision, ", but ", settings.config.source(),
                     " enables ", other, ". Write \"auto\" there, or change mixed_precision.");
  }
  for (const char* dtype : {"fp16", "bf16"}) {
    if (!config.contains(dtype)) config[dtype] = Value::map({{"enabled", false}});
  }
  settings.config.fill({{"fp16.enabled", fp16}, {"bf16.enabled", bf16}});
}

}  // namespace hasten::plan
