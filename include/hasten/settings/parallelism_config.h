// ParallelismConfig: the settings of Accelerate's ParallelismConfig, from arguments, then PARALLELISM_CONFIG_*.
//
// Pure: sizes of axes, the mesh that they make, and the values of the handlers beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::plan {

/// Settings of a program. Unset members follow their variables PARALLELISM_CONFIG_<NAME>, else the default.
struct ParallelismConfig {
  /// 1 by default.
  std::optional<int64_t> dp_replicate_size = {}, dp_shard_size = {}, tp_size = {}, cp_size = {}, sp_size = {};
  /// "torch" and "deepspeed", the only ones.
  std::string cp_backend = "torch", sp_backend = "deepspeed";
  /// "allgather" or "alltoall"; both give the same numbers, by an all-gather.
  std::optional<std::string> cp_comm_strategy = {};
  std::optional<int64_t> sp_seq_length = {};
  std::optional<bool> sp_seq_length_is_variable = {};
  /// "sdpa", "flash_attention_2" or "flash_attention_3".
  std::optional<std::string> sp_attn_implementation = {};
};

/// Accelerate's TorchTensorParallelPlugin, an older way of saying tp_size. The ranks' mesh is made of the sizes.
struct TorchTensorParallelPlugin {
  int tp_size = 1;
};

/// The values after all settings were read.
struct ResolvedParallelism {
  int64_t dp_replicate = 1, dp_shard = 1, cp = 1, sp = 1, tp = 1;
  /// Unset where cp is 1.
  std::optional<std::string> cp_comm_strategy = {};
  /// Unset where sp is 1; the length and the implementation also if they were not given.
  std::optional<int64_t> sp_seq_length = {};
  std::optional<bool> sp_seq_length_is_variable = {};
  std::optional<std::string> sp_attn_implementation = {};

  using Axes = std::vector<std::pair<std::string, int64_t>>;
  int64_t total() const noexcept { return dp_replicate * dp_shard * cp * sp * tp; }
  /// Axes above 1, from the outermost.
  Axes mesh() const;
  /// Names of axes above 1: of batches; of all else; over which weights are split; over which losses are averaged.
  std::vector<std::string> data_axes() const, other_axes() const, shard_axes() const, loss_axes() const;
};

/// Throws: UsageError for sizes below 1, a text that is no number, cp beside sp, or a backend, strategy or
/// implementation that is not there.
ResolvedParallelism resolve_parallelism(const ParallelismConfig& config, const Environment& environment);

/// Returns true if the launcher asks for it: ACCELERATE_USE_PARALLELISM_CONFIG. Throws: UsageError for no flag.
bool uses_parallelism_config(const Environment& environment);

}  // namespace hasten::plan
