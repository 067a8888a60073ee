// See shard_options.h.
#include "hasten/plugins/shard_options.h"

#include <algorithm>
#include <limits>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

WrapPolicy wrap_policy(const plan::FsdpSettings& settings) {
  WrapPolicy policy{.version = settings.fsdp_version};
  if (!settings.auto_wrap_policy) return policy;
  switch (*settings.auto_wrap_policy) {
    case plan::AutoWrapPolicy::kNone:
      policy.rule = WrapPolicy::Rule::kNone;
      break;
    case plan::AutoWrapPolicy::kTransformer:
      policy.rule = WrapPolicy::Rule::kTransformer;
      policy.classes = settings.transformer_cls_names_to_wrap.value_or(std::vector<std::string>());
      break;
    case plan::AutoWrapPolicy::kSize:
      policy.rule = WrapPolicy::Rule::kSize;
      policy.min_num_params = settings.min_num_params.value_or(0);
      break;
  }
  return policy;
}

OffloadOptions offload_options(const plan::ResolvedDeepSpeed& resolved, const std::string& section) {
  const std::string path = "zero_optimization." + section;
  OffloadOptions options;
  const std::string device = resolved.text(path + ".device");
  if (device == "cpu") options.device = OffloadDevice::kCpu;
  if (device == "nvme") options.device = OffloadDevice::kFile;
  options.path = resolved.text(path + ".nvme_path");
  // A tile is read, stepped and written at a time. The peer's default of 10^9 elements means "all of it".
  if (resolved.count("zero_optimization.sub_group_size") > 0 && resolved.is_given("zero_optimization.sub_group_size")) {
    options.tile_numel = std::min<int64_t>(resolved.count("zero_optimization.sub_group_size"), int64_t{1} << 26);
  }
  options.block_bytes = resolved.count("aio.block_size");
  options.queue_depth = static_cast<int>(std::min<int64_t>(resolved.count("aio.queue_depth"), 1024));
  const int64_t threads = std::max(resolved.count("aio.intra_op_parallelism"), resolved.count("aio.thread_count"));
  options.num_threads = static_cast<int>(std::min<int64_t>(threads, 64));
  if (resolved.is_given(path + ".buffer_count")) {
    options.num_buffers = static_cast<int>(std::clamp<int64_t>(resolved.count(path + ".buffer_count"), 2, 64));
  }
  if (section == "offload_optimizer" && resolved.is_given(path + ".cpuadam_cores_perc"))
    options.step_cores = resolved.real(path + ".cpuadam_cores_perc");
  if (section == "offload_optimizer") options.ratio = resolved.real(path + ".ratio");
  return options;
}

int64_t times(int64_t elements, int64_t bytes) {
  return elements > std::numeric_limits<int64_t>::max() / bytes ? std::numeric_limits<int64_t>::max()
                                                                : elements * bytes;
}

}  // namespace

ShardOptions shard_options(const plan::FsdpSettings& settings, ShardOptions base) {
  if (settings.is_replicated()) {
    base.stage = ShardStage::kNone;
    return base;
  }
  base.stage = settings.splits_parameters() ? ShardStage::kParameters : ShardStage::kGradients;
  base.reshard_after_forward = settings.splits_parameters();
  base.across_hosts = settings.sharding_strategy != plan::ShardingStrategy::kHybridShard &&
                      settings.sharding_strategy != plan::ShardingStrategy::kHybridShardZero2;
  base.wrap = wrap_policy(settings);
  base.forward_prefetch = base.forward_prefetch && settings.prefetches_forward;
  if (settings.backward_hint == plan::BackwardPrefetch::kPost) base.backward_prefetch = BackwardPrefetch::kPost;
  if (!settings.prefetches_backward) base.backward_prefetch = BackwardPrefetch::kNone;
  base.limit_all_gathers = base.limit_all_gathers && settings.limit_all_gathers;
  base.ignored.insert(base.ignored.end(), settings.ignored_modules.begin(), settings.ignored_modules.end());
  if (settings.mixed_precision_policy) {
    const auto& dtype = settings.mixed_precision_policy->param_dtype;
    if (dtype == "bfloat16" || dtype == "float16") base.param_dtype = dtype;
  }
  return base;
}

ShardOptions shard_options(const plan::ResolvedDeepSpeed& resolved, const plan::DeepSpeedConfig& config,
                           ShardOptions base) {
  plan::require_supported(resolved, config);
  base.stage = static_cast<ShardStage>(resolved.stage);
  if (base.stage == ShardStage::kNone) return base;
  base.optimizer_offload = offload_options(resolved, "offload_optimizer");
  base.parameter_offload = offload_options(resolved, "offload_param");
  const int64_t bytes = 4;
  if (resolved.is_given("zero_optimization.reduce_bucket_size")) {
    base.wrap.unit_bytes =
        std::min(base.wrap.unit_bytes, times(resolved.count("zero_optimization.reduce_bucket_size"), bytes));
  }
  if (resolved.count("zero_optimization.allgather_bucket_size") > 0 &&
      resolved.is_given("zero_optimization.allgather_bucket_size")) {
    base.wrap.unit_bytes =
        std::min(base.wrap.unit_bytes, times(resolved.count("zero_optimization.allgather_bucket_size"), bytes));
  }
  // Parameters rest on each host, as hpZ's second partition does.
  if (resolved.count("zero_optimization.zero_hpz_partition_size") > 1) base.across_hosts = false;
  base.max_live_bytes = times(resolved.count("zero_optimization.stage3_max_live_parameters"), bytes);
  base.prefetch_bytes = times(resolved.count("zero_optimization.stage3_prefetch_bucket_size"), bytes);
  // Written alone: the peer's default keeps all units of a smaller model, whatever stage3_max_live_parameters is.
  if (resolved.is_given("zero_optimization.stage3_max_reuse_distance"))
    base.max_reuse_bytes = times(resolved.count("zero_optimization.stage3_max_reuse_distance"), bytes);
  base.wrap.leaf_classes = resolved.class_names("zero_optimization.leaf_module.classes");
  base.wrap.leaf_names = resolved.names("zero_optimization.leaf_module.names");
  base.wrap.leaf_suffixes = resolved.names("zero_optimization.leaf_module.name_suffixes");
  base.persist_numel = resolved.count("zero_optimization.stage3_param_persistence_threshold");
  base.persist_total_numel = resolved.count("zero_optimization.stage3_model_persistence_threshold");
  if (resolved.on("fp16.enabled")) base.param_dtype = "float16";
  if (resolved.on("bf16.enabled")) base.param_dtype = "bfloat16";
  return base;
}

}  // namespace hasten::parallel
