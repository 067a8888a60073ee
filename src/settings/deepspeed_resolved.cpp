// The checks of a DeepSpeed configuration against the table of keys; see deepspeed_config.h.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/settings/deepspeed_config.h"
#include "settings/deepspeed_keys.h"
#include "settings/origin.h"

namespace hasten::plan {

using core::Value;

namespace {

std::vector<std::string> words_of(const char* text) {
  std::istringstream words{std::string(text)};
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  return all;
}

// DeepSpeed reads letters of any case in the values of these keys.
bool folds_case(const DeepSpeedKey& key) {
  const std::string path = key.path;
  return path == "checkpoint.tag_validation" || path == "gradient_allreduce_op" ||
         path.ends_with("communication_data_type");
}

// Returns the word in the case of the choices.
std::string folded(const std::string& word, const std::string& choice) {
  const bool is_upper = choice[0] >= 'A' && choice[0] <= 'Z';
  return is_upper ? core::upper(word) : core::lower(word);
}

// DeepSpeed's checked sections read "5" as 5 and "true" as true; other texts stay.
Value unquoted(const DeepSpeedKey& key, const Value& value) {
  const bool is_number = key.type == KeyType::kCount || key.type == KeyType::kReal;
  if (!value.is_string() || (!is_number && key.type != KeyType::kBool)) return value;
  const std::string word = folded(value.as_string(), "a");
  if (!is_number) {
    for (const char* yes : {"true", "yes", "on", "t", "y", "1"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"false", "no", "off", "f", "n", "0"}) {
      if (word == no) return false;
    }
    return value;
  }
  double number = 0;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_count = key.type == KeyType::kReal || word.find_first_not_of("+-0123456789") == std::string::npos;
  return failed == std::errc() && end == word.data() + word.size() && is_count ? Value(number) : value;
}

// Returns the mistake of a value of this key; "" if there is none.
std::string problem_of(const DeepSpeedKey& key, const Value& value) {
  const auto expected = [&](const std::string& allowed) {
    return text("is ", value.to_json(), "; expected ", allowed);
  };
  switch (key.type) {
    case KeyType::kBool:
      return value.is_bool() || value == Value(0) || value == Value(1) ? "" : expected("true or false");
    case KeyType::kCount:
    case KeyType::kReal: {
      if (!value.is_number()) return expected(value.is_string() ? "a number, without quotes" : "a number");
      const double number = value.as_double();
      if (key.type == KeyType::kCount && number != std::floor(number)) return expected("a whole number");
      if (key.type == KeyType::kCount && std::abs(number) > 9.3e18) return expected("a number below 2^63");
      return number < key.least ? expected(text(key.least > 0 && key.least < 1e-9 ? "above " : "at least ",
                                                key.least < 1e-9 && key.least > 0 ? 0 : key.least))
                                : "";
    }
    case KeyType::kText:
      return value.is_string() ? "" : expected("text");
    case KeyType::kChoice: {
      const auto choices = words_of(key.choices);
      std::string word = value.is_string() ? value.as_string() : value.to_json();
      if (folds_case(key)) word = folded(word, choices[0]);
      if (value.is_string() && std::find(choices.begin(), choices.end(), word) != choices.end()) return "";
      return expected(join(choices, " or ")) + did_you_mean(word, choices);
    }
    case KeyType::kSection:
      return value.is_map() ? "" : expected("a map");
    case KeyType::kFree:
      return "";
  }
  return "";
}

}  // namespace

/// Walks a configuration once; problems are collected, and thrown together.
class DeepSpeedResolver {
 public:
  DeepSpeedResolver(const DeepSpeedConfig& config, int world_size) : config_(config), world_size_(world_size) {}

  ResolvedDeepSpeed all(bool needs_batch) {
    section(config_.config(), "");
    rename();
    if (resolved_.on("flops_profiler.enabled")) set("wall_clock_breakdown", true);
    stage();
    precision();
    optimizer();
    ranges();
    lists();
    if (problems_.empty()) refusals();
    if (problems_.empty()) batch(needs_batch);
    if (problems_.empty()) return std::move(resolved_);
    throw UsageError(kDeepSpeed, config_.source(), ": ", join(problems_, "; "), ".");
  }

 private:
  void section(const Value& map, const std::string& prefix) {
    for (const auto& [name, value] : map.as_map()) {
      const std::string path = prefix.empty() ? name : prefix + "." + name;
      const auto* key = find_deepspeed_key(path);
      if (path == "bfloat16" && map.contains("bf16") && !map.find("bf16")->is_null()) {
        resolved_.notes.push_back("bfloat16 is the old name of bf16, which is there as well and counts");
      } else if (key == nullptr) {
        unknown(path, prefix, name);
      } else if (key->answer == KeyAnswer::kRemoved) {
        problems_.push_back(path + ": " + key->words);
      } else if (!(value.is_string() && value.as_string() == "auto") &&
                 !(value.is_null() && (std::string(key->otherwise) == "null" || path == "gradient_clipping"))) {
        const bool is_lenient =
            prefix.starts_with("zero_optimization") || prefix.starts_with("fp16") || prefix.starts_with("bf");
        known(*key, path, is_lenient ? unquoted(*key, value) : value);
      }
    }
  }

  void unknown(const std::string& path, const std::string& prefix, const std::string& name) {
    const auto names = deepspeed_key_names(prefix == "bfloat16" ? "bf16" : prefix);
    const std::string guess = did_you_mean(name, names);
    if (is_strict_section(prefix) || !guess.empty()) {
      problems_.push_back("unknown key " + path + (guess.empty() ? "" : " (" + guess.substr(2) + ")"));
    } else {
      resolved_.notes.push_back("unknown key " + path + " is ignored");
    }
  }

  void known(const DeepSpeedKey& key, const std::string& path, const Value& value) {
    if (std::string(key.path) == "zero_optimization.stage" && value.is_bool()) {
      resolved_.notes.push_back(text(path, " is ", value.as_bool() ? "true: read as 1" : "false: read as 0"));
      resolved_.given_.emplace_back(key.path, Value(value.as_bool() ? 1 : 0));
      return;
    }
    if (std::string(key.path) == "zero_optimization" && value.is_bool()) {
      // DeepSpeed's oldest form.
      resolved_.notes.push_back(
          text(path, value.as_bool() ? " is true: read as stage 1" : " is false: read as stage 0"));
      if (value.as_bool()) resolved_.given_.emplace_back("zero_optimization.stage", Value(1));
      return;
    }
    const std::string problem = problem_of(key, value);
    if (!problem.empty()) {
      problems_.push_back(path + " " + problem);
      return;
    }
    if (key.type == KeyType::kSection) {
      resolved_.given_.emplace_back(key.path, value);
      section(value, path);
      return;
    }
    if (find(key.path) != nullptr) {
      problems_.push_back(text(path, " and ", key.path, " are one key; write it once"));
      return;
    }
    Value own = value;
    if (key.type == KeyType::kBool && value.is_int()) own = value.as_int() != 0;
    if (key.type == KeyType::kChoice && folds_case(key) && std::string(key.path) != "checkpoint.tag_validation")
      own = folded(value.as_string(), words_of(key.choices)[0]);
    if (key.type == KeyType::kCount) own = static_cast<int64_t>(std::min(value.as_double(), 9.2e18));
    const bool differs = !(own == Value::parse_json(key.otherwise)) &&
                         !(own.is_number() && Value::parse_json(key.otherwise).is_number() &&
                           own.as_double() == Value::parse_json(key.otherwise).as_double());
    if (differs && key.answer == KeyAnswer::kIgnored && key.words[0] != '\0') {
      resolved_.notes.push_back(text(path, " is ignored: ", key.words));
    }
    if (differs && key.answer == KeyAnswer::kRefused) resolved_.refusals.push_back(text(path, ": ", key.words));
    resolved_.given_.emplace_back(key.path, std::move(own));
  }

  const Value* find(const std::string& path) const {
    for (const auto& [key, value] : resolved_.given_) {
      if (key == path) return &value;
    }
    return nullptr;
  }
  void set(const std::string& path, Value value) {
    std::erase_if(resolved_.given_, [&](const auto& each) { return each.first == path; });
    resolved_.given_.emplace_back(path, std::move(value));
  }

  // Old names.
  void rename() {
    const std::string zero = "zero_optimization.";
    for (const auto& [old, section] :
         {std::pair{"cpu_offload", "offload_optimizer"}, std::pair{"cpu_offload_param", "offload_param"}}) {
      const auto* value = find(zero + old);
      if (value == nullptr) continue;
      if (config_.find(zero + section) != nullptr) {
        problems_.push_back(
            text(zero, old, " is the old name of ", section, ", which is there as well; leave the old one out"));
      } else if (value->as_bool()) {
        resolved_.notes.push_back(text(zero, old, " is the old name of ", section, ".device \"cpu\""));
        set(zero + section, Value::map({{"device", "cpu"}}));
        set(zero + section + ".device", "cpu");
      }
    }
    const std::string save = zero + "stage3_gather_16bit_weights_on_model_save";
    if (const auto* value = find(zero + "stage3_gather_fp16_weights_on_model_save")) {
      if (find(save) != nullptr) {
        problems_.push_back(text(zero, "stage3_gather_fp16_weights_on_model_save is the old name of ", save,
                                 ", which is there as well; leave the old one out"));
      }
      set(zero + "stage3_gather_16bit_weights_on_model_save", *value);
    }
  }

  void stage() {
    const auto* value = find("zero_optimization.stage");
    const int64_t stage = value == nullptr ? 0 : value->as_int();
    if (stage > 3) problems_.push_back(text("zero_optimization.stage is ", stage, "; expected 0, 1, 2 or 3"));
    resolved_.stage = static_cast<int>(stage);
    if (stage == 3 && find("zero_optimization.overlap_comm") == nullptr) set("zero_optimization.overlap_comm", true);
    const std::string zero = "zero_optimization.";
    if (!resolved_.on(zero + "compute_grad_norm") && stage != 1 && stage != 2) {
      problems_.push_back(text(zero, "compute_grad_norm is false at stage ", stage, "; expected stage 1 or 2 with it"));
    }
    if (resolved_.real(zero + "offload_optimizer.ratio") < 1 && stage != 3) {
      problems_.push_back(
          text(zero, "offload_optimizer.ratio is below 1 at stage ", stage, "; expected stage 3 with it"));
    }
    if (resolved_.text("gradient_allreduce_op") == "sum" && stage == 3) {
      problems_.push_back("gradient_allreduce_op is \"sum\" at stage 3, which takes the mean");
    }
  }

  void precision() {
    const bool fp16 = resolved_.on("fp16.enabled"), bf16 = resolved_.on("bf16.enabled");
    if (fp16 && bf16) problems_.push_back("fp16.enabled and bf16.enabled are both true; expected one of them");
    if (fp16 && resolved_.real("fp16.loss_scale") == 0 && resolved_.count("fp16.loss_scale_window") <= 0) {
      problems_.push_back(text("fp16.loss_scale_window is ", resolved_.count("fp16.loss_scale_window"),
                               "; expected above 0 where loss_scale is 0 (dynamic)"));
    }
    if (fp16 && resolved_.real("fp16.loss_scale") == 0 && resolved_.count("fp16.min_loss_scale") <= 0) {
      problems_.push_back(text("fp16.min_loss_scale is ", resolved_.count("fp16.min_loss_scale"),
                               "; expected above 0 where loss_scale is 0 (dynamic)"));
    }
    for (const char* key :
         {"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"}) {
      if (resolved_.on(key) && resolved_.stage == 0)
        problems_.push_back(text(key, " is true at stage 0; expected stage 1, 2 or 3 with it"));
    }
    if (resolved_.on("bf16.bf16_optimizer_states") && !resolved_.on("bf16.bf16_master_weights_and_grads")) {
      problems_.push_back(
          "bf16.bf16_optimizer_states is true without bf16_master_weights_and_grads. Set both, or none");
    }
    const std::string accumulates = resolved_.text("data_types.grad_accum_dtype");
    if (accumulates == "fp16" || accumulates == "bf16") {
      resolved_.notes.push_back(text("data_types.grad_accum_dtype ", accumulates,
                                     ": gradients are added up in float32, the parameters' own"));
    }
  }

  void optimizer() {
    for (const char* section : {"optimizer", "scheduler"}) {
      const auto* map = find(section);
      if (map != nullptr && !map->empty() && find(std::string(section) + ".type") == nullptr) {
        problems_.push_back(
            text(section, " has no type; expected its name, such as ", section[0] == 'o' ? "AdamW" : "WarmupLR"));
      }
    }
  }

  void ranges() {
    const auto* ratio = find("zero_optimization.offload_optimizer.ratio");
    if (ratio != nullptr && ratio->as_double() > 1) {
      problems_.push_back(text("zero_optimization.offload_optimizer.ratio is ", ratio->to_json(), "; expected 0 to 1"));
    }
    const auto* cores = find("zero_optimization.offload_optimizer.cpuadam_cores_perc");
    if (cores != nullptr && cores->as_double() > 1) {
      problems_.push_back(text("zero_optimization.offload_optimizer.cpuadam_cores_perc is ", cores->to_json(),
                               "; expected a part of the cores, 0 to 1"));
    }
  }

  // Lists of names; leaf_module takes a single one as well.
  void lists() {
    const std::string leaf = "zero_optimization.leaf_module.";
    for (const std::string& key :
         {std::string("data_types.keep_in_fp32_modules"), std::string("torch_autocast.lower_precision_safe_modules"),
          leaf + "classes", leaf + "names", leaf + "name_suffixes"}) {
      const auto* value = find(key);
      if (value == nullptr || (key.starts_with(leaf) && value->is_string())) continue;
      const bool is_list = value->is_list() && std::all_of(value->as_list().begin(), value->as_list().end(),
                                                           [](const Value& each) { return each.is_string(); });
      if (!is_list) problems_.push_back(text(key, " is ", value->to_json(), "; expected a list of names"));
    }
  }

  // Contradictions here that DeepSpeed's own reading accepts.
  void refusals() {
    auto& all = resolved_.refusals;
    const std::string zero = "zero_optimization.";
    for (const char* section : {"offload_optimizer", "offload_param"}) {
      const std::string device = resolved_.text(zero + section + ".device");
      if (device == "none") continue;
      const bool has_it = section == std::string("offload_param") ? resolved_.stage == 3 : resolved_.stage >= 1;
      if (!has_it)
        all.push_back(text(zero, section, " at stage ", resolved_.stage, ", which splits nothing that it could move"));
      if (device == "nvme" && !resolved_.is_given(zero + section + ".nvme_path")) {
        all.push_back(text(zero, section, ".device is \"nvme\" without a nvme_path. Write the folder"));
      }
    }
    if (!resolved_.on(zero + "compute_grad_norm") && resolved_.real("gradient_clipping") > 0) {
      all.push_back("zero_optimization.compute_grad_norm is false, but gradient_clipping needs the norm");
    }
    const std::string param = short_dtype(resolved_.text("data_types.param_dtype"));
    const std::string mode = resolved_.on("fp16.enabled") ? "fp16" : resolved_.on("bf16.enabled") ? "bf16" : "fp32";
    if (!param.empty() && param != mode) {
      all.push_back(text("data_types.param_dtype is ", param, ", and fp16.enabled and bf16.enabled make it ", mode,
                         ". Enable ", param == "fp32" ? "neither" : param, " there, or leave param_dtype out"));
    }
  }

  std::optional<int64_t> number(const char* key) const {
    const auto* value = find(key);
    return value == nullptr ? std::nullopt : std::optional(value->as_int());
  }

  void batch(bool needs_batch) {
    const auto train = number("train_batch_size"), micro = number("train_micro_batch_size_per_gpu");
    if (!train && !micro && !needs_batch) return;
    try {
      resolved_.batch = solve_batch(train, micro, number("gradient_accumulation_steps"), world_size_);
    } catch (const UsageError& error) {
      problems_.push_back(inner_words(error.what()));
    }
  }

  const DeepSpeedConfig& config_;
  int world_size_;
  ResolvedDeepSpeed resolved_;
  std::vector<std::string> problems_;
};

const Value& ResolvedDeepSpeed::at(const std::string& key) const {
  const auto* known = find_deepspeed_key(key);
  if (known == nullptr) throw InternalError(kDeepSpeed, "no key ", key, " in the table");
  for (const auto& [path, value] : given_) {
    if (path == known->path) return value;
  }
  static const std::map<std::string, Value> defaults = [] {
    std::map<std::string, Value> all;
    for (const auto& each : deepspeed_keys()) all.emplace(each.path, Value::parse_json(each.otherwise));
    return all;
  }();
  return defaults.at(known->path);
}

bool ResolvedDeepSpeed::on(const std::string& key) const {
  return at(key).is_bool() && at(key).as_bool();
}
int64_t ResolvedDeepSpeed::count(const std::string& key) const {
  return at(key).is_null() ? 0 : at(key).as_int();
}
double ResolvedDeepSpeed::real(const std::string& key) const {
  return at(key).is_null() ? 0.0 : at(key).as_double();
}
std::string ResolvedDeepSpeed::text(const std::string& key) const {
  return at(key).is_string() ? at(key).as_string() : "";
}

std::vector<std::string> ResolvedDeepSpeed::names(const std::string& key) const {
  const Value& value = at(key);
  if (value.is_string() && value.as_string() != "auto") return {value.as_string()};
  std::vector<std::string> all;
  for (const auto& each : value.is_list() ? value.as_list() : Value::List()) all.push_back(each.as_string());
  return all;
}

std::vector<std::string> ResolvedDeepSpeed::class_names(const std::string& key) const {
  auto all = names(key);
  for (auto& name : all) {
    if (name.find("::") == std::string::npos) name = name.substr(name.rfind('.') + 1);
  }
  return all;
}

std::string short_dtype(const std::string& name) {
  const std::string own = name.starts_with("torch.") ? name.substr(6) : name;
  if (own == "float16" || own == "half") return "fp16";
  if (own == "bfloat16") return "bf16";
  return own == "float32" || own == "float" ? "fp32" : own;
}

bool ResolvedDeepSpeed::is_given(const std::string& key) const {
  const auto* known = find_deepspeed_key(key);
  return known != nullptr &&
         std::any_of(given_.begin(), given_.end(), [&](const auto& each) { return each.first == known->path; });
}

ResolvedDeepSpeed resolve_deepspeed(const DeepSpeedConfig& config, int world_size, bool needs_batch) {
  return DeepSpeedResolver(config, world_size).all(needs_batch);
}

void require_supported(const ResolvedDeepSpeed& resolved, const DeepSpeedConfig& config) {
  if (resolved.refusals.empty()) return;
  throw UsageError(kDeepSpeed, config.source(), ": ", join(resolved.refusals, "; "), ".");
}

}  // namespace hasten::plan
