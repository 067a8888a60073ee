// See fsdp_plugin.h.
#include "hasten/settings/fsdp_plugin.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/settings/fsdp_names.h"
#include "settings/origin.h"

namespace hasten::plan {
namespace {

using core::upper;

std::string trimmed(const std::string& text) {
  return std::string(core::trim(text, " \t"));
}

/// Returns the index of one of `names` (any case) or of its number, from 1.
int parse_name(const std::string& text, const std::string& source, const std::vector<std::string>& names) {
  std::string word = upper(text);
  // Python's int() reads "02" as well.
  const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) word.erase(0, std::min(word.find_first_not_of('0'), word.size() - 1));
  for (size_t i = 0; i < names.size(); ++i) {
    if (word == names[i] || word == hasten::text(i + 1)) return static_cast<int>(i) + 1;
  }
  throw UsageError(kFsdp, source, " is '", text, "'; expected one of ", join(names), ", or their numbers 1 to ",
                   names.size(), guess_end(word, names));
}

bool parse_bool(const std::string& text, const std::string& source) {
  static const std::vector<std::string> yes = {"1", "TRUE", "T", "YES", "Y", "ON"},
                                        no = {"0", "FALSE", "F", "NO", "N", "OFF"};
  const std::string word = upper(text);
  if (std::find(yes.begin(), yes.end(), word) != yes.end()) return true;
  if (std::find(no.begin(), no.end(), word) != no.end()) return false;
  throw UsageError(kFsdp, source, " is '", text, "'; expected true or false (1 t yes y on, 0 f no n off).");
}

bool reshards(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

int64_t parse_count(const std::string& given, const std::string& source) {
  std::string text = trimmed(given);
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value != std::floor(value) ||
      std::abs(value) > 9e18) {
    throw UsageError(kFsdp, source, " is '", text, "'; expected a number of parameters, such as 100000000 or 1e8.");
  }
  if (value < 0) throw UsageError(kFsdp, source, " is ", text, "; expected 0 (no units) or more.");
  return static_cast<int64_t>(value);
}

/// Reads a plugin setting by setting; every function is one row of Accelerate's __post_init__.
class FsdpReader {
 public:
  FsdpReader(const FsdpPlugin& plugin, const Environment& environment)
      : plugin_(plugin), variables_(environment.variables()) {}

  FsdpSettings all() {
    version();
    if (s_.fsdp_version == 1) {
      strategy_of_version_1();
    } else {
      resharding_of_version_2();
    }
    s_.cpu_offload = flag(plugin_.cpu_offload, "FSDP_OFFLOAD_PARAMS", false);
    prefetches();
    state_dict();
    wrapping();
    obsolete();
    recompute();
    ignored();
    s_.limit_all_gathers = plugin_.limit_all_gathers;
    s_.cast_forward_inputs = plugin_.cast_forward_inputs.value_or(true);
    if (!plugin_.mixed_precision_policy.is_null()) precision(plugin_.mixed_precision_policy);
    return std::move(s_);
  }

 private:
  std::optional<std::string> variable(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
  }
  void note(std::string words) { s_.notes.push_back(std::move(words)); }

  bool flag(const std::optional<bool>& given, const std::string& name, bool otherwise) const {
    if (given) return *given;
    const auto text = variable(name);
    return text ? parse_bool(*text, name) : otherwise;
  }

  void version() {
    if (plugin_.fsdp_version) {
      s_.fsdp_version = *plugin_.fsdp_version;
    } else if (const auto text = variable("FSDP_VERSION")) {
      s_.fsdp_version = parse_name(trimmed(*text), "FSDP_VERSION", {"1", "2"});
    }
    if (s_.fsdp_version != 1 && s_.fsdp_version != 2) {
      throw UsageError(kFsdp, "fsdp_version is ", s_.fsdp_version, "; expected 1 or 2.");
    }
  }

  static std::string strategy_text(const std::string& text) {
    // torch's own spelling of the last one has an underscore in front.
    return upper(text) == "_HYBRID_SHARD_ZERO2" ? text.substr(1) : text;
  }

  void strategy_of_version_1() {
    const auto given = plugin_.sharding_strategy ? plugin_.sharding_strategy : variable("FSDP_SHARDING_STRATEGY");
    const std::string source = plugin_.sharding_strategy ? "sharding_strategy" : "FSDP_SHARDING_STRATEGY";
    const auto own = given ? parse_sharding_strategy(strategy_text(*given), source) : ShardingStrategy::kFullShard;
    s_.sharding_strategy = own;
    std::string text, reshard = "reshard_after_forward";
    if (plugin_.reshard_after_forward.is_string()) {
      text = plugin_.reshard_after_forward.as_string();
    } else if (!plugin_.reshard_after_forward.is_null()) {
      throw UsageError(
          kFsdp, "reshard_after_forward is ", plugin_.reshard_after_forward.to_json(),
          " under fsdp_version 1; expected a strategy's name. Set fsdp_version = 2, or sharding_strategy.");
    } else if (const auto from_variable = variable("FSDP_RESHARD_AFTER_FORWARD")) {
      text = *from_variable, reshard = "FSDP_RESHARD_AFTER_FORWARD";
    }
    const bool from_argument = plugin_.reshard_after_forward.is_string();
    if (text.empty() && !from_argument) return;
    const auto& names = fsdp_strategy_names();
    const bool is_number = text.size() == 1 && text[0] >= '2' && text[0] <= '5';
    if (!from_argument && std::find(names.begin(), names.end(), upper(text)) == names.end() && !is_number) {
      // The launcher's default for version 2 is handed to version 1 as well.
      if (!parse_bool(text, reshard))
        note(reshard + "=" + text + " has no effect under fsdp_version 1, which reads sharding_strategy.");
      return;
    }
    const auto other = parse_sharding_strategy(strategy_text(text), reshard);
    if (other == own || other == ShardingStrategy::kFullShard) return;
    if (given && own != ShardingStrategy::kFullShard) {
      throw UsageError(kFsdp, source, "=", *given, " and ", reshard, "=", text,
                       " contradict each other. Leave one out.");
    }
    note(reshard + "=" + text + " is taken for the sharding strategy, which was left at its default FULL_SHARD.");
    s_.sharding_strategy = other;
  }

  void resharding_of_version_2() {
    std::optional<bool> own;
    std::string source = "reshard_after_forward";
    const auto& argument = plugin_.reshard_after_forward;
    if (argument.is_bool()) {
      own = argument.as_bool();
    } else if (argument.is_string()) {
      own = parse_bool(argument.as_string(), source);
    } else if (!argument.is_null()) {
      throw UsageError(
          kFsdp, "reshard_after_forward is ", argument.to_json(),
          " under fsdp_version 2; expected true or false. For groups of ranks set ShardOptions::shard_over and mesh.");
    } else if (const auto text = variable("FSDP_RESHARD_AFTER_FORWARD")) {
      source = "FSDP_RESHARD_AFTER_FORWARD";
      own = parse_bool(*text, source);
    }
    const auto given = plugin_.sharding_strategy ? plugin_.sharding_strategy : variable("FSDP_SHARDING_STRATEGY");
    if (given) {
      const std::string name = plugin_.sharding_strategy ? "sharding_strategy" : "FSDP_SHARDING_STRATEGY";
      const auto strategy = parse_sharding_strategy(strategy_text(*given), name);
      const bool requested = reshards(strategy);
      // FULL_SHARD is what the launcher sets by itself.
      if (own && *own != requested && strategy != ShardingStrategy::kFullShard) {
        throw UsageError(
            kFsdp, name, "=", *given, " and ", source, "=", *own ? "true" : "false",
            " contradict each other under fsdp_version 2. Leave the strategy out, or set reshard_after_forward to ",
            requested ? "true" : "false", ".");
      }
      if (!own && strategy != ShardingStrategy::kFullShard) {
        note(name + "=" + *given + " is read as reshard_after_forward " + (requested ? "true" : "false") +
             " under fsdp_version 2.");
      }
      if (!own) own = requested;
    }
    s_.reshard_after_forward = own.value_or(true);
  }

  void prefetches() {
    auto text = plugin_.backward_prefetch ? plugin_.backward_prefetch : variable("FSDP_BACKWARD_PREFETCH");
    s_.prefetches_backward = !text || upper(*text) != "NO_PREFETCH";
    s_.prefetches_forward = plugin_.forward_prefetch.value_or(true);
    if (text && s_.prefetches_backward) {
      s_.backward_hint = static_cast<BackwardPrefetch>(parse_name(
          *text, plugin_.backward_prefetch ? "backward_prefetch" : "FSDP_BACKWARD_PREFETCH", fsdp_prefetch_names()));
    }
    if (s_.fsdp_version == 1) {
      s_.backward_prefetch = s_.backward_hint;
      s_.forward_prefetch = flag(plugin_.forward_prefetch, "FSDP_FORWARD_PREFETCH", false);
    } else if (plugin_.forward_prefetch) {
      throw UsageError(kFsdp, "forward_prefetch is ", *plugin_.forward_prefetch ? "true" : "false",
                       " under fsdp_version 2, where units are always filled ahead. Leave it out.");
    }
  }

  void state_dict() {
    const auto text = plugin_.state_dict_type ? plugin_.state_dict_type : variable("FSDP_STATE_DICT_TYPE");
    s_.state_dict_type = s_.fsdp_version == 1 ? StateDictType::kFull : StateDictType::kSharded;
    if (text) {
      s_.state_dict_type = static_cast<StateDictType>(
          parse_name(*text, plugin_.state_dict_type ? "state_dict_type" : "FSDP_STATE_DICT_TYPE", fsdp_state_names()));
    }
    if (s_.state_dict_type == StateDictType::kLocal) {
      if (s_.fsdp_version == 2) {
        throw UsageError(kFsdp,
                         "state_dict_type is LOCAL_STATE_DICT under fsdp_version 2; expected FULL_STATE_DICT or "
                         "SHARDED_STATE_DICT.");
      }
      note("LOCAL_STATE_DICT is written as SHARDED_STATE_DICT, which loads on any number of ranks.");
    }
    if (plugin_.state_dict_config) {
      s_.state_dict_config = *plugin_.state_dict_config;
    } else if (s_.state_dict_type != StateDictType::kLocal) {
      s_.state_dict_config.offload_to_cpu = true;
      if (s_.state_dict_type == StateDictType::kFull) s_.state_dict_config.rank0_only = true;
    }
  }

  void wrapping() {
    const auto text = plugin_.auto_wrap_policy ? plugin_.auto_wrap_policy : variable("FSDP_AUTO_WRAP_POLICY");
    if (text) {
      // Numbers are no names of policies.
      const auto& names = fsdp_wrap_names();
      const auto found = std::find(names.begin(), names.end(), upper(*text));
      if (found == names.end()) {
        throw UsageError(kFsdp, plugin_.auto_wrap_policy ? "auto_wrap_policy" : "FSDP_AUTO_WRAP_POLICY", " is '", *text,
                         "'; expected one of ", join(names), guess_end(upper(*text), names));
      }
      s_.auto_wrap_policy = static_cast<AutoWrapPolicy>(found - names.begin());
    }
    const auto classes = variable("FSDP_TRANSFORMER_CLS_TO_WRAP"), least = variable("FSDP_MIN_NUM_PARAMS");
    s_.transformer_cls_names_to_wrap = plugin_.transformer_cls_names_to_wrap;
    s_.min_num_params = plugin_.min_num_params;
    if (s_.min_num_params.value_or(0) < 0)
      throw UsageError(kFsdp, "min_num_params is ", *s_.min_num_params, "; expected 0 or more.");
    if (s_.auto_wrap_policy == AutoWrapPolicy::kTransformer) {
      if (!s_.transformer_cls_names_to_wrap && classes) {
        // An empty name stays, and is refused as a class that the model lacks.
        s_.transformer_cls_names_to_wrap = core::split(*classes + ",", ',');
      }
      if (s_.transformer_cls_names_to_wrap) {
        for (auto& name : *s_.transformer_cls_names_to_wrap) name = trimmed(name);
      }
    } else if (s_.auto_wrap_policy == AutoWrapPolicy::kSize) {
      if (!s_.min_num_params) s_.min_num_params = least ? parse_count(*least, "FSDP_MIN_NUM_PARAMS") : 0;
    } else if (plugin_.min_num_params ||
               (plugin_.transformer_cls_names_to_wrap && s_.auto_wrap_policy != AutoWrapPolicy::kNone)) {
      note("min_num_params and transformer_cls_names_to_wrap have no effect without their auto_wrap_policy.");
    } else if (least && *least != "100000000" && *least != "1e8") {
      note("FSDP_MIN_NUM_PARAMS has no effect without FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP.");
    }
  }

  // Settings that FSDP 1 alone has.
  void obsolete() {
    s_.cpu_ram_efficient_loading = flag(plugin_.cpu_ram_efficient_loading, "FSDP_CPU_RAM_EFFICIENT_LOADING", false);
    if (s_.fsdp_version == 2) {
      if (plugin_.use_orig_params || plugin_.sync_module_states) {
        note("use_orig_params and sync_module_states mean nothing under fsdp_version 2: both are always so.");
      }
      return;
    }
    s_.use_orig_params = flag(plugin_.use_orig_params, "FSDP_USE_ORIG_PARAMS", false);
    if (plugin_.use_orig_params == false)
      note("use_orig_params = false is read as true: parameters are never flattened.");
    s_.sync_module_states =
        flag(plugin_.sync_module_states, "FSDP_SYNC_MODULE_STATES", false) || s_.cpu_ram_efficient_loading;
    const bool is_off = plugin_.sync_module_states == false || variable("FSDP_SYNC_MODULE_STATES");
    s_.checks_module_states = is_off && s_.sync_module_states == false;
    if (s_.cpu_ram_efficient_loading && plugin_.sync_module_states == false) {
      note("sync_module_states is true, since cpu_ram_efficient_loading needs it.");
    }
  }

  void recompute() {
    s_.activation_checkpointing = flag(plugin_.activation_checkpointing, "FSDP_ACTIVATION_CHECKPOINTING", false);
    s_.activation_checkpointing_offload =
        flag(plugin_.activation_checkpointing_offload, "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", false);
    if (s_.activation_checkpointing_offload && !s_.activation_checkpointing) {
      throw UsageError(kFsdp,
                       "activation_checkpointing_offload without activation_checkpointing. Set both, or neither.");
    }
    if (s_.activation_checkpointing_offload && s_.fsdp_version != 2) {
      throw UsageError(kFsdp, "activation_checkpointing_offload under fsdp_version 1; expected fsdp_version 2.");
    }
  }

  void ignored() {
    s_.ignored_modules = plugin_.ignored_modules;
    if (!s_.ignored_modules.empty()) return;
    const auto pattern = variable("FSDP_IGNORED_MODULES");
    if (pattern && !pattern->empty()) s_.ignored_modules.push_back(*pattern);
  }

  void precision(const core::Value& policy) {
    if (policy.is_string()) {
      set_mixed_precision(s_, policy.as_string());
      return;
    }
    if (!policy.is_map())
      throw UsageError(kFsdp, "mixed_precision_policy is ", policy.to_json(),
                       "; expected a precision's name or a map of dtypes.");
    const std::string last = s_.fsdp_version == 1 ? "buffer_dtype" : "output_dtype";
    const std::vector<std::string> keys = {"param_dtype", "reduce_dtype", last},
                                   dtypes = {"float32", "float16", "bfloat16"};
    DtypePolicy own;
    for (const auto& [key, value] : policy.as_map()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        throw UsageError(kFsdp, "mixed_precision_policy has ", key, "; expected ", join(keys), guess_end(key, keys));
      }
      if (!value.is_string() || std::find(dtypes.begin(), dtypes.end(), value.as_string()) == dtypes.end()) {
        throw UsageError(kFsdp, "mixed_precision_policy.", key, " is ", value.to_json(), "; expected one of ",
                         join(dtypes), ".");
      }
      (key == keys[0]         ? own.param_dtype
       : key == keys[1]       ? own.reduce_dtype
       : s_.fsdp_version == 1 ? own.buffer_dtype
                              : own.output_dtype) = value.as_string();
    }
    s_.mixed_precision_policy = own;
  }

  const FsdpPlugin& plugin_;
  const std::map<std::string, std::string>& variables_;
  FsdpSettings s_;
};

}  // namespace

namespace {

// A strategy by name or number, or what version 2 has already.
core::Value resharding_of(const std::string& key, const core::Value& value) {
  if (value.is_bool() || value.is_null()) return value;
  const std::string name = value.is_string() ? value.as_string() : value.to_json();
  // Version 2 reads such a text by itself.
  if (key == "fsdp_reshard_after_forward" && (upper(name) == "TRUE" || upper(name) == "FALSE")) return value;
  return reshards(parse_sharding_strategy(name, key));
}

}  // namespace

bool FsdpSettings::splits_parameters() const noexcept {
  return sharding_strategy ? reshards(*sharding_strategy) : reshard_after_forward.value_or(true);
}

bool FsdpSettings::is_replicated() const noexcept {
  return sharding_strategy == ShardingStrategy::kNoShard;
}

FsdpSettings resolve_fsdp(const FsdpPlugin& plugin, const Environment& environment) {
  return FsdpReader(plugin, environment).all();
}

void set_mixed_precision(FsdpSettings& settings, const std::string& mixed_precision) {
  static const std::vector<std::pair<std::string, std::string>> dtypes = {
      {"fp8", "bfloat16"}, {"fp16", "float16"}, {"bf16", "bfloat16"}, {"fp32", "float32"}};
  const auto found =
      std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& each) { return each.first == mixed_precision; });
  if (found == dtypes.end()) {
    throw UsageError(kFsdp, "mixed_precision_policy is '", mixed_precision, "'; expected fp8, fp16, bf16 or fp32.");
  }
  if (settings.mixed_precision_policy) return;
  const std::string& dtype = found->second;
  settings.mixed_precision_policy =
      settings.fsdp_version == 1 ? DtypePolicy{dtype, dtype, dtype, {}} : DtypePolicy{dtype, dtype, {}, dtype};
}

std::string name_of(ShardingStrategy strategy) {
  return fsdp_strategy_names()[static_cast<size_t>(strategy) - 1];
}
std::string name_of(BackwardPrefetch prefetch) {
  return fsdp_prefetch_names()[static_cast<size_t>(prefetch) - 1];
}
std::string name_of(StateDictType type) {
  return fsdp_state_names()[static_cast<size_t>(type) - 1];
}
std::string name_of(AutoWrapPolicy policy) {
  return fsdp_wrap_names()[static_cast<size_t>(policy)];
}

ShardingStrategy parse_sharding_strategy(const std::string& text, const std::string& source) {
  return static_cast<ShardingStrategy>(parse_name(text, source, fsdp_strategy_names()));
}

Fsdp2Conversion convert_to_fsdp2(const core::Value& config) {
  Fsdp2Conversion done{.config = config};
  const auto* section = config.find("fsdp_config");
  if (section == nullptr || section->empty()) {
    done.notes.push_back("the configuration has no section fsdp_config: nothing is converted");
    return done;
  }
  const auto* version = section->find("fsdp_version");
  if (version != nullptr && version->is_number() && version->as_double() == 2) {
    done.notes.push_back("the configuration is of fsdp_version 2 already: nothing is converted");
    return done;
  }
  core::Value converted = core::Value::map();
  for (const auto& [key, value] : section->as_map()) {
    if (key == "fsdp_backward_prefetch" || key == "fsdp_sync_module_states" || key == "fsdp_use_orig_params") {
      done.notes.push_back(key + " is removed: FSDP 2 does not have it");
    } else if (key == "fsdp_forward_prefetch") {
      done.notes.push_back(key + " is removed: FSDP 2 does not have it yet; units are filled ahead by themselves");
    } else if (key == "fsdp_sharding_strategy" || key == "fsdp_reshard_after_forward") {
      // Version 2's own key counts where both are there.
      const bool outdone = key == "fsdp_sharding_strategy" && section->contains("fsdp_reshard_after_forward");
      const auto own = resharding_of(key, value);
      if (!outdone) converted["fsdp_reshard_after_forward"] = own;
    } else {
      converted[key] = value;
    }
  }
  converted["fsdp_version"] = 2;
  done.config["fsdp_config"] = std::move(converted);
  return done;
}

}  // namespace hasten::plan
