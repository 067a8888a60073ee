// From settings of FSDP and DeepSpeed to ShardOptions.
#pragma once

#include "hasten/parallel/shard/options.h"
#include "hasten/settings/deepspeed_config.h"
#include "hasten/settings/fsdp_plugin.h"

namespace hasten::parallel {

/// Returns the options for the settings. Options that they do not name (init, shard_over, hidden_size) come from
/// `base`.
ShardOptions shard_options(const plan::FsdpSettings& settings, ShardOptions base);

/// Returns the same of a DeepSpeed configuration. Throws: UsageError as plan::require_supported.
ShardOptions shard_options(const plan::ResolvedDeepSpeed& resolved, const plan::DeepSpeedConfig& config,
                           ShardOptions base);

}  // namespace hasten::parallel
