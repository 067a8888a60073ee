// See deepspeed_keys.h.
#include "settings/deepspeed_keys.h"

#include <algorithm>

namespace hasten::plan {
namespace {

constexpr auto H = KeyAnswer::kHonoured, N = KeyAnswer::kWhereFilled, W = KeyAnswer::kIgnored, R = KeyAnswer::kRefused,
               X = KeyAnswer::kRemoved;
constexpr auto kBool = KeyType::kBool;
constexpr auto kCount = KeyType::kCount;
constexpr auto kReal = KeyType::kReal;
constexpr auto kText = KeyType::kText;
constexpr auto kChoice = KeyType::kChoice;
constexpr auto kSection = KeyType::kSection;
constexpr auto kFree = KeyType::kFree;

// DeepSpeed's names of them.
constexpr const char* kDtypes =
    "fp32 float32 float torch.float32 fp16 float16 half torch.float16 bf16 bfloat16 torch.bfloat16";

/// For counts without a lower bound.
constexpr double kAnyNumber = -9e18;

constexpr const char* kSlices = "it says how DeepSpeed does inside what slices of one mapping do anyway";
constexpr const char* kPinned = "what a GPU copies from is always pinned; on CPUs nothing is copied";
constexpr const char* kOperators = "the report lists operators, since modules of C++ have no hooks";
constexpr const char* kUnused = "nothing here corresponds to it";
constexpr const char* kChangesNumbers = "it changes numbers, and is not built. Leave it out";

void add_top(std::vector<DeepSpeedKey>& keys) {
  const std::vector<DeepSpeedKey> own = {
      {"train_batch_size", kCount, "null", H, "", 1},
      {"train_micro_batch_size_per_gpu", kCount, "null", H, "", 1},
      {"gradient_accumulation_steps", kCount, "null", H, "", 1},
      {"gradient_clipping", kReal, "0.0", H},
      {"prescale_gradients", kBool, "false", H},
      {"gradient_predivide_factor", kReal, "1.0", H, "", 1e-300},
      {"gradient_allreduce_op", kChoice, "\"mean\"", H, "", 0, "mean sum"},
      {"communication_data_type", kChoice, "null", H, "", 0, "fp16 bf16 fp32"},
      {"data_types", kSection, "{}", H},
      {"data_types.grad_accum_dtype", kChoice, "null", H, "", 0, "fp16 bf16 fp32"},
      {"data_types.param_dtype", kChoice, "null", H, "", 0, kDtypes},
      {"data_types.buffer_dtype", kChoice, "null", H, "", 0, kDtypes},
      {"data_types.keep_in_fp32_modules", kFree, "\"auto\"", H},
      {"fp16", kSection, "{}", H},
      {"fp16.enabled", kBool, "false", H},
      {"fp16.auto_cast", kBool, "false", H},
      {"fp16.loss_scale", kReal, "0.0", H},
      {"fp16.initial_scale_power", kCount, "16", H, "", kAnyNumber},
      {"fp16.loss_scale_window", kCount, "1000", H, "", kAnyNumber},
      {"fp16.hysteresis", kCount, "2", H},
      {"fp16.consecutive_hysteresis", kBool, "false", H},
      {"fp16.min_loss_scale", kCount, "1", H, "", kAnyNumber},
      {"fp16.fp16_master_weights_and_grads", kBool, "false", R,
       "it trains without float32 masters. Leave it out, or set "
       "PrecisionOptions::weights"},
      {"bf16", kSection, "{}", H},
      {"bf16.enabled", kBool, "false", H},
      {"bf16.check_grad_overflow", kBool, "true", H},
      {"bf16.immediate_grad_update", kBool, "false", W, kSlices},
      {"bf16.bf16_master_weights_and_grads", kBool, "false", R,
       "it trains without float32 masters. Leave it out, or set "
       "PrecisionOptions::weights"},
      {"bf16.bf16_optimizer_states", kBool, "false", R,
       "moments stay float32 here. Leave it out, or set PrecisionOptions::states"},
      {"bfloat16", kSection, "{}", H},
      {"torch_autocast", kSection, "{}", H},
      {"torch_autocast.enabled", kBool, "false", H},
      {"torch_autocast.dtype", kChoice, "\"bfloat16\"", H, "", 0, "bfloat16 float16 bf16 fp16"},
      {"torch_autocast.lower_precision_safe_modules", kFree, "null", H},
      {"optimizer", kSection, "{}", H},
      {"optimizer.type", kText, "null", H},
      {"optimizer.params", kFree, "null", H},
      {"optimizer.legacy_fusion", kBool, "false", W, kUnused},
      {"scheduler", kSection, "{}", H},
      {"scheduler.type", kText, "null", H},
      {"scheduler.params", kFree, "null", H},
      {"zero_allow_untested_optimizer", kBool, "false", W, ""},
      {"zero_force_ds_cpu_optimizer", kBool, "true", W, ""},
      {"steps_per_print", kFree, "null", H, ""},
      {"wall_clock_breakdown", kBool, "false", H, ""},
      {"memory_breakdown", kBool, "false", H, ""},
      {"dump_state", kBool, "false", W, kUnused},
      {"log_level", kText, "null", W, "HASTEN_LOG_LEVEL sets it"},
      {"dataloader_drop_last", kBool, "false", H},
      {"disable_allgather", kBool, "false", W, kSlices},
      {"disable_python_gc", kBool, "false", W, kUnused},
      {"vocabulary_size", kFree, "null", W, kUnused},
      {"managed_gradient_accumulation", kBool, "true", W, kUnused},
      {"seq_parallel_communication_data_type", kChoice, "null", W, kUnused, 0, "fp16 bf16 fp32"},
  };
  keys.insert(keys.end(), own.begin(), own.end());
}

void add_zero(std::vector<DeepSpeedKey>& keys) {
  const std::vector<DeepSpeedKey> own = {
      {"zero_optimization", kSection, "{}", H},
      {"zero_optimization.stage", kCount, "0", H},
      {"zero_optimization.contiguous_gradients", kBool, "true", W, kSlices},
      {"zero_optimization.reduce_scatter", kBool, "true", W, kSlices},
      {"zero_optimization.reduce_bucket_size", kCount, "500000000", H, "", 1},
      {"zero_optimization.use_multi_rank_bucket_allreduce", kBool, "true", W, kSlices},
      {"zero_optimization.allgather_partitions", kBool, "true", W, kSlices},
      {"zero_optimization.allgather_bucket_size", kCount, "500000000", H},
      {"zero_optimization.overlap_comm", kBool, "null", H},
      {"zero_optimization.load_from_fp32_weights", kBool, "true", W, "masters are always float32"},
      {"zero_optimization.elastic_checkpoint", kBool, "false", W, "states load on any number of ranks"},
      {"zero_optimization.offload_param", kSection, "null", H},
      {"zero_optimization.offload_optimizer", kSection, "null", H},
      {"zero_optimization.sub_group_size", kCount, "1000000000", H},
      {"zero_optimization.cpu_offload", kBool, "null", H},
      {"zero_optimization.cpu_offload_param", kBool, "null", H},
      {"zero_optimization.cpu_offload_use_pin_memory", kBool, "null", W, kPinned},
      {"zero_optimization.stage3_prefetch_bucket_size", kCount, "50000000", N},
      {"zero_optimization.stage3_param_persistence_threshold", kCount, "100000", N},
      {"zero_optimization.stage3_model_persistence_threshold", kCount, "9223372036854775807", N},
      {"zero_optimization.stage3_max_live_parameters", kCount, "1000000000", N},
      {"zero_optimization.stage3_max_reuse_distance", kCount, "1000000000", N},
      {"zero_optimization.stage3_module_granularity_threshold", kCount, "0", W, "units do not follow modules",
       kAnyNumber},
      {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kBool, "false", W, kSlices},
      {"zero_optimization.stage3_allgather_sequential", kBool, "false", W, kSlices},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kBool, "false", H},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kBool, "null", H},
      {"zero_optimization.ignore_unused_parameters", kBool, "true", H},
      {"zero_optimization.legacy_stage1", kBool, "false", W, kSlices},
      {"zero_optimization.round_robin_gradients", kBool, "false", W, kSlices},
      {"zero_optimization.parameter_alignment", kBool, "false", W, kSlices},
      {"zero_optimization.compute_grad_norm", kBool, "true", H},
      {"zero_optimization.zero_hpz_partition_size", kCount, "1", H},
      {"zero_optimization.zero_quantized_weights", kBool, "false", R, kChangesNumbers},
      {"zero_optimization.zero_quantized_nontrainable_weights", kBool, "false", R, kChangesNumbers},
      {"zero_optimization.zero_quantized_gradients", kBool, "false", R, kChangesNumbers},
      {"zero_optimization.zeropp_loco_param", kFree, "null", X, "ZeRO++'s LoCo was removed. Leave it out"},
      {"zero_optimization.mics_shard_size", kCount, "-1", X,
       "MiCS was removed. Set ShardOptions::shard_over to an axis of the mesh", -1},
      {"zero_optimization.mics_hierarchical_params_gather", kBool, "false", X,
       "MiCS was removed. Set ShardOptions::shard_over to an axis of the mesh"},
      {"zero_optimization.memory_efficient_linear", kBool, "true", W, kSlices},
      {"zero_optimization.pipeline_loading_checkpoint", kBool, "false", W, kUnused},
      {"zero_optimization.override_module_apply", kBool, "true", W, kSlices},
      {"zero_optimization.save_muon_momentum_buffer_in_memory", kBool, "false", W, kUnused},
      {"zero_optimization.zenflow", kFree, "null", R, kChangesNumbers},
      {"zero_optimization.leaf_module", kSection, "null", N},
      {"zero_optimization.leaf_module.classes", kFree, "null", N},
      {"zero_optimization.leaf_module.names", kFree, "null", N},
      {"zero_optimization.leaf_module.name_suffixes", kFree, "null", N},
      {"zero_optimization.log_trace_cache_warnings", kBool, "false", W, "the order of units is learnt anew by itself"},
      {"zero_optimization.enable_sanity_checks", kBool, "false", W, "an Accelerator's collectives are always checked"},
      {"zero_optimization.offload_param.device", kChoice, "\"none\"", H, "", 0, "none cpu nvme"},
      {"zero_optimization.offload_param.nvme_path", kText, "null", H},
      {"zero_optimization.offload_param.buffer_count", kCount, "5", W, "the page cache holds what is in use"},
      {"zero_optimization.offload_param.buffer_size", kCount, "100000000", W, "the page cache holds what is in use"},
      {"zero_optimization.offload_param.max_in_cpu", kCount, "1000000000", W, "the page cache holds what is in use"},
      {"zero_optimization.offload_param.pin_memory", kBool, "true", W, kPinned},
      {"zero_optimization.offload_optimizer.device", kChoice, "\"none\"", H, "", 0, "none cpu nvme"},
      {"zero_optimization.offload_optimizer.nvme_path", kText, "null", H},
      {"zero_optimization.offload_optimizer.buffer_count", kCount, "4", H},
      {"zero_optimization.offload_optimizer.pin_memory", kBool, "true", W, kPinned},
      {"zero_optimization.offload_optimizer.pipeline_read", kBool, "false", W, "tiles are read ahead anyway"},
      {"zero_optimization.offload_optimizer.pipeline_write", kBool, "false", W, "tiles are written behind anyway"},
      {"zero_optimization.offload_optimizer.fast_init", kBool, "false", W, kUnused},
      {"zero_optimization.offload_optimizer.ratio", kReal, "1.0", H},
      {"zero_optimization.offload_optimizer.super_offload", kBool, "false", W,
       "a GPU's step on the host overlaps its copies anyway"},
      {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kReal, "0.8", H},
  };
  keys.insert(keys.end(), own.begin(), own.end());
}

void add_others(std::vector<DeepSpeedKey>& keys) {
  const std::vector<DeepSpeedKey> own = {
      {"aio", kSection, "{}", H},
      {"aio.block_size", kCount, "1048576", H, "", 1},
      {"aio.queue_depth", kCount, "8", H, "", 1},
      {"aio.intra_op_parallelism", kCount, "1", H, "", 1},
      {"aio.thread_count", kCount, "1", H, "", 1},
      {"aio.single_submit", kBool, "false", W, kUnused},
      {"aio.overlap_events", kBool, "true", W, kUnused},
      {"aio.use_gds", kBool, "false", W, "files are read and written through the host's memory"},
      {"checkpoint", kSection, "{}", H},
      {"checkpoint.tag_validation", kChoice, "\"WARN\"", H, "", 0, "WARN IGNORE FAIL"},
      {"checkpoint.load_universal", kBool, "false", W, "states load on any number of ranks"},
      {"checkpoint.use_node_local_storage", kBool, "false", H},
      {"checkpoint.parallel_write", kFree, "null", W, kUnused},
      {"activation_checkpointing", kSection, "{}", H},
      {"activation_checkpointing.partition_activations", kBool, "false", W, "a region's inputs are whole on each rank"},
      {"activation_checkpointing.cpu_checkpointing", kBool, "false", H},
      {"activation_checkpointing.number_checkpoints", kCount, "null", H, "", 1},
      {"activation_checkpointing.contiguous_memory_optimization", kBool, "false", W, kUnused},
      {"activation_checkpointing.synchronize_checkpoint_boundary", kBool, "false", W, kUnused},
      {"activation_checkpointing.profile", kBool, "false", W, kUnused},
      {"flops_profiler", kSection, "{}", H},
      {"flops_profiler.enabled", kBool, "false", H, "switches `wall_clock_breakdown` on"},
      {"flops_profiler.profile_step", kCount, "1", H},
      {"flops_profiler.module_depth", kFree, "-1", W, kOperators},
      {"flops_profiler.top_modules", kCount, "1", W, kOperators},
      {"flops_profiler.detailed", kBool, "true", W, kOperators},
      {"flops_profiler.output_file", kText, "null", H},
      {"flops_profiler.recompute_fwd_factor", kReal, "0.0", W, ""},
      {"comms_logger", kSection, "{}", W, "measure with a profiler"},
      {"comms_logger.enabled", kBool, "false", W, "measure with a profiler"},
      {"comms_logger.prof_all", kBool, "true", W, ""},
      {"comms_logger.prof_ops", kFree, "[]", W, ""},
      {"comms_logger.verbose", kBool, "false", W, ""},
      {"comms_logger.debug", kBool, "false", W, ""},
      {"tensorboard", kSection, "{}", H},
      {"tensorboard.enabled", kBool, "false", H},
      {"tensorboard.output_path", kText, "\"\"", H},
      {"tensorboard.job_name", kText, "\"DeepSpeedJobName\"", H},
      {"wandb", kSection, "{}", H},
      {"wandb.enabled", kBool, "false", H},
      {"wandb.group", kText, "null", H},
      {"wandb.team", kText, "null", H},
      {"wandb.project", kText, "\"deepspeed\"", H},
      {"csv_monitor", kSection, "{}", H},
      {"csv_monitor.enabled", kBool, "false", H},
      {"csv_monitor.output_path", kText, "\"\"", H},
      {"csv_monitor.job_name", kText, "\"DeepSpeedJobName\"", H},
      {"comet", kSection, "{}", H},
      {"comet.enabled", kBool, "false", H},
      {"comet.samples_log_interval", kCount, "100", W, "metrics are written at each report"},
      {"comet.project", kText, "null", H},
      {"comet.workspace", kText, "null", H},
      {"comet.api_key", kText, "null", H},
      {"comet.experiment_name", kText, "null", H},
      {"comet.experiment_key", kText, "null", H},
      {"comet.online", kBool, "null", H},
      {"comet.mode", kText, "null", H},
      {"compile", kFree, "{}", W, "torch.compile is Python's"},
      {"timers", kFree, "{}", W, kUnused},
      {"weight_quantization", kFree, "{}", W, kUnused},
      {"data_efficiency", kFree, "{}", W, kUnused},
      {"zenflow", kFree, "null", W, kUnused},
      {"hybrid_engine", kFree, "{}", W, kUnused},
      {"autotuning", kFree, "{}", W, kUnused},
      {"datastates", kFree, "{}", W, kUnused},
      {"msamp", kFree, "{}", R, "MS-AMP is not built. Set mixed_precision = kFp8 with a recipe of Fp8Options"},
      {"tensor_parallel", kFree, "{}", R, "it has no engine behind a DeepSpeed configuration yet. Leave it out"},
      {"expert_parallel", kFree, "{}", R, "it has no engine behind a DeepSpeed configuration yet. Leave it out"},
      {"sequence_parallel_size", kCount, "1", R, "it has no engine behind a DeepSpeed configuration yet. Leave it out"},
      {"pipeline", kFree, "{}", R, "it has no engine behind a DeepSpeed configuration yet. Leave it out"},
      {"amp", kFree, "null", X, "Apex's amp was removed. Set mixed_precision"},
      {"elasticity", kFree, "null", X, "it was removed. Use hasten launch --max_restarts and ranges of --nnodes"},
      {"sparse_gradients", kFree, "null", X,
       "it was removed. Sparse gradients of an Embedding are exchanged by themselves"},
      {"curriculum_learning", kFree, "null", X, "it was removed. Choose samples in the data set"},
      {"nebula", kFree, "null", X, "it was removed. Save with save_state"},
      {"compression_training", kFree, "null", X, "it was removed. Leave it out"},
      {"quantize_training", kFree, "null", X, "it was removed. Leave it out"},
      {"eigenvalue", kFree, "null", X, "it was removed. Leave it out"},
      {"sparse_attention", kFree, "null", X, "it was removed. Leave it out"},
      {"graph_harvesting", kFree, "null", X, "it was removed. Leave it out"},
      {"progressive_layer_drop", kFree, "null", X, "it was removed. Leave it out"},
  };
  keys.insert(keys.end(), own.begin(), own.end());
}

std::vector<DeepSpeedKey> all_keys() {
  std::vector<DeepSpeedKey> keys;
  add_top(keys);
  add_zero(keys);
  add_others(keys);
  return keys;
}

}  // namespace

const std::vector<DeepSpeedKey>& deepspeed_keys() {
  static const std::vector<DeepSpeedKey> keys = all_keys();
  return keys;
}

const DeepSpeedKey* find_deepspeed_key(std::string_view path) {
  const auto& keys = deepspeed_keys();
  const auto with_path = [&](std::string_view requested) -> const DeepSpeedKey* {
    const auto found =
        std::find_if(keys.begin(), keys.end(), [&](const DeepSpeedKey& key) { return requested == key.path; });
    return found == keys.end() ? nullptr : &*found;
  };
  if (const auto* key = with_path(path)) return key;
  if (path.starts_with("bfloat16.")) return find_deepspeed_key("bf16." + std::string(path.substr(9)));
  constexpr std::string_view kZero = "zero_optimization.";
  if (!path.starts_with(kZero)) return nullptr;
  return with_path(std::string(kZero) + "stage3_" + std::string(path.substr(kZero.size())));
}

std::vector<std::string> deepspeed_key_names(std::string_view section) {
  std::vector<std::string> names;
  for (const auto& key : deepspeed_keys()) {
    const std::string_view path = key.path;
    const auto dot = path.rfind('.');
    const std::string_view own = dot == std::string_view::npos ? "" : path.substr(0, dot);
    if (own == section) names.emplace_back(path.substr(own.empty() ? 0 : dot + 1));
  }
  return names;
}

bool is_strict_section(std::string_view section) {
  for (const char* own : {"fp16", "bf16", "bfloat16", "zero_optimization", "comms_logger", "tensorboard", "wandb",
                          "csv_monitor", "comet"}) {
    if (section == own) return true;
  }
  return section.starts_with("zero_optimization.");
}

}  // namespace hasten::plan
