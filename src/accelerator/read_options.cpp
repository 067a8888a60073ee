// See accelerator/read_options.h.
#include "accelerator/read_options.h"

#include <optional>
#include <string>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/core/timeout.h"
#include "hasten/plugins/megatron.h"
#include "hasten/settings/parallelism_config.h"

namespace hasten {
namespace {

// Variables of a launcher that this version does not carry out yet.
struct Missing {
  const char* variable;
  const char* flag;
  const char* what;
};

constexpr Missing kMissing[] = {
    {"ACCELERATE_DYNAMO_BACKEND", "--dynamo_backend", "torch.compile, a compiler of Python"},
    {"ACCELERATE_CPU_AFFINITY", "--enable_cpu_affinity",
     "a program that binds itself to the cores near its GPU (the launcher's --numa_binding node does that)"}};

bool asks(const std::string& text) {
  const std::string value = core::lower(text);
  return value != "no" && value != "n" && value != "false" && value != "f" && value != "off" && value != "0";
}

void refuse_what_is_missing(const Environment& environment) {
  std::string found;
  for (const auto& [variable, flag, what] : kMissing) {
    const auto value = environment.text(variable);
    if (!value || !asks(*value)) continue;
    found += text(found.empty() ? "" : "; ", variable, '=', *value, " (", flag, ") asks for ", what);
  }
  if (found.empty()) return;
  throw UsageError(Origin{"accelerator"}, found,
                   ", which this version does not have yet. Leave it out, or set it to no.");
}

// Layers are cut over the ranks of the plugin.
parallel::ParallelOptions with_plugin(parallel::ParallelOptions options,
                                      const std::optional<TorchTensorParallelPlugin>& plugin) {
  if (!plugin) return options;
  if (options.tp != 1 && options.tp != plugin->tp_size) {
    throw UsageError(Origin{"accelerator"}, "torch_tp_plugin.tp_size = ", plugin->tp_size,
                     " beside parallel.tp = ", options.tp,
                     ": both say over how many ranks layers are cut. Leave one of them out.");
  }
  options.tp = plugin->tp_size;
  return options;
}

// The launcher's sizes; the program's own count before them.
parallel::ParallelOptions read_parallel(parallel::ParallelOptions options, const Environment& environment) {
  if (!plan::uses_parallelism_config(environment)) return options;
  const auto given = plan::resolve_parallelism({}, environment);
  const auto read = [](int& size, int64_t value) {
    if (size == 1) size = static_cast<int>(value);
  };
  read(options.dp_replicate, given.dp_replicate);
  read(options.dp_shard, given.dp_shard);
  read(options.cp, given.cp);
  read(options.sp, given.sp);
  read(options.tp, given.tp);
  return options;
}

}  // namespace

ReadOptions read_options(AcceleratorOptions options, Environment environment) {
  refuse_what_is_missing(environment);
  require_timeout(Origin{"accelerator"}, options.timeout);
  if (const auto precision = environment.text("ACCELERATE_MIXED_PRECISION")) {
    precision::parse_precision(*precision, "ACCELERATE_MIXED_PRECISION");
  }
  if (environment.flag("XLA_DOWNCAST_BF16").value_or(false)) {
    throw UsageError(Origin{"accelerator"},
                     "XLA_DOWNCAST_BF16 (--downcast_bf16) asks for XLA's bfloat16, which libtorch does "
                     "not have. Leave it out, and use --mixed_precision bf16.");
  }
  options.parallel = read_parallel(with_plugin(options.parallel, options.torch_tp_plugin), environment);
  apply_megatron(options, environment);
  options.fp8 = precision::read_fp8_options(options.fp8, environment);
  if (!options.change_process) {
    options.tune_allocator = false;
    options.ddp.in_place_bytes.reset();
  }
  // "auto" is a DeepSpeed configuration's word for the program's number.
  if (environment.text("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") != "auto") {
    options.gradient_accumulation_steps =
        environment.integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1).value_or(options.gradient_accumulation_steps);
  }
  // HASTEN_DEBUG is read where groups are made.
  if (!options.check && !environment.has("HASTEN_DEBUG")) {
    options.check = environment.flag("ACCELERATE_DEBUG_MODE");
  }
  if (options.project.logging_dir.empty()) options.project.logging_dir = options.project.project_dir;
  return {std::move(options), std::move(environment)};
}

parallel::ShardOptions shard_options(const AcceleratorOptions& options, const parallel::Layout& layout) {
  parallel::ShardOptions shard = options.shard;
  const auto& sizes = layout.sizes();
  if (sizes.dp_shard == 1) return shard;
  if (shard.stage == parallel::ShardStage::kNone) shard.stage = parallel::ShardStage::kParameters;
  if (sizes.dp_replicate == 1) return shard;
  if (!shard.mesh.empty()) {
    throw UsageError(Origin{"accelerator"}, "shard.mesh beside parallel.dp_replicate ", sizes.dp_replicate,
                     " x dp_shard ", sizes.dp_shard, ": both lay out the ranks. Leave shard.mesh out.");
  }
  shard.mesh = {{"dp_replicate", sizes.dp_replicate}, {"dp_shard", sizes.dp_shard}};
  shard.shard_over = "dp_shard";
  return shard;
}

training::AccumulationOptions accumulation_options(const AcceleratorOptions& options) {
  return {.num_steps = options.gradient_accumulation_steps,
          .sync_with_dataloader = options.accumulation.sync_with_dataloader,
          .sync_each_batch = options.accumulation.sync_each_batch};
}

data::LoaderOptions loader_options(const AcceleratorOptions& options, bool put_on_device) {
  auto loader = options.loader;
  loader.put_on_device = loader.put_on_device && put_on_device;
  return loader;
}

optim::PreparedSchedulerOptions scheduler_options(const AcceleratorOptions& options, int world_size) {
  return {.step_with_optimizer = options.step_scheduler_with_optimizer,
          .adjust_scheduler = options.accumulation.adjust_scheduler,
          .once_per_process = options.scheduler.step_per_process && !options.loader.split_batches,
          .world_size = world_size};
}

std::vector<bool> device_placements(const PrepareOptions& options, size_t num_objects, bool otherwise) {
  if (options.device_placement.empty()) return std::vector<bool>(num_objects, otherwise);
  if (options.device_placement.size() == num_objects) return options.device_placement;
  throw UsageError(Origin{"accelerator"}, "device_placement has ", count_text(options.device_placement.size(), "value"),
                   " for ", count_text(num_objects, "object"), ". Give prepare one for each, or none.");
}

}  // namespace hasten
