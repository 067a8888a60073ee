// FsdpPlugin: the settings of Accelerate's FullyShardedDataParallelPlugin, from arguments, then variables FSDP_*.
//
// Pure: the values of a plugin after its settings were read, as the peer's, and their consequences for this library. An
// argument counts before its variable. Versions 1 and 2 differ in their defaults. They also differ in which of
// sharding_strategy and reshard_after_forward is read. plugins/shard_options.h turns the settings into ShardOptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/value.h"

namespace hasten::plan {

/// FSDP 1's strategies, in the numbers that settings may use.
enum class ShardingStrategy { kFullShard = 1, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2 };
/// When the next unit is filled in backward: before or after this one's gradients.
enum class BackwardPrefetch { kPre = 1, kPost };
/// The form of a saved state.
enum class StateDictType { kFull = 1, kLocal, kSharded };
/// How units are made.
enum class AutoWrapPolicy { kTransformer, kSize, kNone };

/// Dtypes by name ("bfloat16"); version 1 has a buffer dtype, version 2 an output dtype.
struct DtypePolicy {
  std::string param_dtype = {}, reduce_dtype = {}, buffer_dtype = {}, output_dtype = {};
  bool operator==(const DtypePolicy&) const = default;
};

struct StateDictConfig {
  std::optional<bool> offload_to_cpu = {};
  std::optional<bool> rank0_only = {};
};

/// Settings of a program. Unset members follow their variables FSDP_<NAME>, else the version's default.
struct FsdpPlugin {
  std::optional<int> fsdp_version = {};
  /// A name of any case or its number 1 to 5.
  std::optional<std::string> sharding_strategy = {};
  /// Version 2: true or false. Version 1: a strategy's name, which counts if no other one was given.
  core::Value reshard_after_forward = {};
  /// TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP. Unset: units by use; NO_WRAP: one unit.
  std::optional<std::string> auto_wrap_policy = {};
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap = {};
  std::optional<int64_t> min_num_params = {};
  /// BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH, or 1, 2.
  std::optional<std::string> backward_prefetch = {};
  std::optional<bool> forward_prefetch = {};
  bool limit_all_gathers = true;
  std::optional<bool> use_orig_params = {};
  std::optional<bool> cpu_offload = {};
  std::optional<bool> sync_module_states = {};
  std::optional<bool> cpu_ram_efficient_loading = {};
  /// FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT, or 1, 2, 3.
  std::optional<std::string> state_dict_type = {};
  std::optional<StateDictConfig> state_dict_config = {};
  std::optional<StateDictConfig> optim_state_dict_config = {};
  std::optional<bool> activation_checkpointing = {};
  std::optional<bool> activation_checkpointing_offload = {};
  /// Names of modules or parameters, and ECMAScript patterns that a module's whole name matches.
  std::vector<std::string> ignored_modules = {};
  /// fp8, fp16, bf16, fp32, or a map of dtype names: param_dtype, reduce_dtype, buffer_dtype or output_dtype.
  core::Value mixed_precision_policy = {};
  /// Casts the inputs of prepared models to param_dtype.
  std::optional<bool> cast_forward_inputs = {};
};

/// Values of a plugin once its settings were read.
struct FsdpSettings {
  int fsdp_version = 1;
  std::optional<ShardingStrategy> sharding_strategy = {};  ///< version 1
  std::optional<bool> reshard_after_forward = {};          ///< version 2
  std::optional<AutoWrapPolicy> auto_wrap_policy = {};     ///< unset: not requested
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap = {};
  std::optional<int64_t> min_num_params = {};
  std::optional<BackwardPrefetch> backward_prefetch = {};
  std::optional<bool> forward_prefetch = {};
  bool limit_all_gathers = true;
  std::optional<bool> use_orig_params = {}, sync_module_states = {};
  bool cpu_offload = false, cpu_ram_efficient_loading = false;
  StateDictType state_dict_type = StateDictType::kFull;
  StateDictConfig state_dict_config = {};
  bool activation_checkpointing = false, activation_checkpointing_offload = false;
  std::vector<std::string> ignored_modules = {};
  std::optional<DtypePolicy> mixed_precision_policy = {};
  bool cast_forward_inputs = true;
  /// The requested order of filling in backward; version 2 honours it as well.
  std::optional<BackwardPrefetch> backward_hint = {};
  /// False if NO_PREFETCH was written, and if the program has set forward_prefetch to false. The launcher's false is
  /// its default, and counts as nothing.
  bool prefetches_backward = true, prefetches_forward = true;
  /// sync_module_states was set to false: ranks must hold equal values, which are compared.
  bool checks_module_states = false;
  /// One line for each setting that means something else here, or nothing.
  std::vector<std::string> notes = {};

  /// Parameters are split over the ranks (ZeRO's stage 3), else only gradients and optimizer state (stage 2).
  bool splits_parameters() const noexcept;
  /// Nothing is split (NO_SHARD).
  bool is_replicated() const noexcept;
};

/// Reads the settings.
/// Throws: UsageError naming the setting or variable, its value and what was expected; for contradictions both.
FsdpSettings resolve_fsdp(const FsdpPlugin& plugin, const Environment& environment);

/// Sets the dtypes from a precision's name (fp8, fp16, bf16, fp32) unless the plugin has its own.
/// Throws: UsageError for another name.
void set_mixed_precision(FsdpSettings& settings, const std::string& mixed_precision);

/// Accelerate's names: "FULL_SHARD", "TRANSFORMER_BASED_WRAP" …
std::string name_of(ShardingStrategy strategy);
std::string name_of(BackwardPrefetch prefetch);
std::string name_of(StateDictType type);
std::string name_of(AutoWrapPolicy policy);

/// Reads one of Accelerate's names of any case, or its number. Throws: UsageError with did-you-mean; `source` names the
/// setting.
ShardingStrategy parse_sharding_strategy(const std::string& text, const std::string& source);

/// Accelerate's configuration of FSDP 1, converted to FSDP 2 (`hasten to-fsdp2`): the keys of the section fsdp_config.
struct Fsdp2Conversion {
  core::Value config = {};
  std::vector<std::string> notes = {};
};

/// Converts the whole configuration. Without a section fsdp_config, or for version 2, it is returned as it is, with a
/// note.
/// Throws: UsageError for a strategy that does not exist.
Fsdp2Conversion convert_to_fsdp2(const core::Value& config);

}  // namespace hasten::plan
