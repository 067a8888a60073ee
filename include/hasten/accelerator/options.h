// The options of an Accelerator and of its prepare, under the names Accelerate gives them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator/watch_options.h"
#include "hasten/checkpoint/options.h"
#include "hasten/comm/group/group.h"
#include "hasten/core/value.h"
#include "hasten/data/loader/loader_options.h"
#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/layout/parallel_options.h"
#include "hasten/parallel/recompute/recompute.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/fp8.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/options.h"
#include "hasten/precision/policy.h"
#include "hasten/settings/deepspeed_plugin.h"
#include "hasten/settings/fsdp_plugin.h"
#include "hasten/settings/parallelism_config.h"
#include "hasten/tracking/run/trackers.h"

namespace hasten {

using parallel::ParallelOptions;
using parallel::RecomputeOptions;
using parallel::ShardOptions;
using parallel::ShardStage;
using plan::DeepSpeedPlugin;
using plan::FsdpPlugin;
using plan::TorchTensorParallelPlugin;
using precision::Precision;

/// Accelerate's GradientAccumulationPlugin; its num_steps is AcceleratorOptions::gradient_accumulation_steps.
struct AccumulationPlugin {
  /// The last batch of a loader always ends the window.
  bool sync_with_dataloader = true;
  /// Gradients are exchanged with every batch: more to send, less memory where they are sharded.
  bool sync_each_batch = false;
  /// The lengths of prepared schedulers were given in batches, not in optimizer steps, although gradients are
  /// accumulated.
  bool adjust_scheduler = false;
};

struct SchedulerOptions {
  /// Moves prepared schedulers once per process at each optimizer step, as Accelerate does. With split_batches they
  /// move once, since the global batch does not grow with the processes.
  bool step_per_process = false;
};

/// Most programs set mixed_precision, gradient_accumulation_steps, seed, log_with and project, and leave the rest
/// alone. Designated initializers name members in this order.
struct AcceleratorOptions {
  // ---- Run: devices, loaders, steps. Most programs leave these but gradient_accumulation_steps and seed alone.

  /// Moves models and the batches of loaders to the process's device; PrepareOptions overrides it per object.
  bool device_placement = true;
  /// Stay on the CPU even where there is a GPU.
  bool cpu = false;
  /// How prepared loaders treat their batches; put_on_device goes together with device_placement.
  data::LoaderOptions loader = {};
  /// Batches for one step of the optimizer, if the loop calls accumulate (training/accumulation.h).
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS, which a launcher sets, overrides it.
  int64_t gradient_accumulation_steps = 1;
  AccumulationPlugin accumulation = {};
  /// Prepared schedulers move with the optimizer's steps, not with every call (docs/schedulers.md).
  bool step_scheduler_with_optimizer = true;
  SchedulerOptions scheduler = {};
  /// Seeds every random generator, as set_seed does, before anything else.
  std::optional<uint64_t> seed = {};

  // ---- Precision. Most programs set mixed_precision alone.

  /// The dtype that prepared models compute in (docs/precision.md). Unset: ACCELERATE_MIXED_PRECISION, else kNo.
  std::optional<Precision> mixed_precision = {};
  /// Outputs, living casts (docs/GLOSSARY.md), and weights below float32.
  precision::PrecisionOptions precision = {};
  /// The precision of model(x) and autocast(); its dtype is mixed_precision's.
  precision::AutocastOptions autocast = {};
  /// The loss scale of kFp16.
  precision::GradScalerOptions scaler = {};
  /// The recipe of kFp8.
  precision::Fp8Options fp8 = {};

  // ---- Process. Most programs leave these alone.

  /// Freed memory of the host stays in the process (memory/allocator.h). Unset: HASTEN_TUNE_ALLOCATOR, else
  /// yes.
  std::optional<bool> tune_allocator = {};
  /// The one switch for all that an Accelerator changes in the whole process. False leaves malloc, libtorch's CPU
  /// allocator, SIGPIPE and std::terminate as they are (docs/process.md).
  bool change_process = true;

  // ---- Parallelism. Most programs leave these alone, or set shard where a model is too large for a rank.

  parallel::DdpOptions ddp = {};
  /// Splits optimizer state, gradients and parameters over the ranks (ZeRO, FSDP; docs/sharding.md): `.shard =
  /// {.stage = ShardStage::kParameters}`. By default nothing is split.
  parallel::ShardOptions shard = {.stage = parallel::ShardStage::kNone};
  /// Cuts models and sequences over the ranks: tensor, sequence and context parallelism (docs/model_parallel.md):
  /// `.parallel = {.dp_shard = 2, .tp = 2}`. ACCELERATE_USE_PARALLELISM_CONFIG and PARALLELISM_CONFIG_* set its sizes.
  parallel::ParallelOptions parallel = {};
  /// Accelerate's FSDP settings, instead of `shard`; ACCELERATE_USE_FSDP and FSDP_* set the same (docs/sharding.md).
  std::optional<FsdpPlugin> fsdp = {};
  /// A DeepSpeed configuration, instead of `shard`; ACCELERATE_USE_DEEPSPEED sets the same. Or several by name, of
  /// which the first is selected at first.
  std::optional<DeepSpeedPlugin> deepspeed = {};
  std::vector<std::pair<std::string, DeepSpeedPlugin>> deepspeed_plugins = {};
  /// Accelerate's MegatronLMPlugin, instead of sizes in `parallel`: `MegatronLmPlugin{.tp_degree = 2}`, or a map of its
  /// fields. ACCELERATE_USE_MEGATRON_LM and MEGATRON_LM_* set the same (docs/model_parallel.md).
  std::optional<core::Value> megatron_lm = {};
  /// Accelerate's TorchTensorParallelPlugin: another name of `parallel.tp`, beside which another number is refused.
  std::optional<TorchTensorParallelPlugin> torch_tp_plugin = {};
  /// Activations of prepared models are dropped in forward and computed again in backward (docs/recompute.md). FSDP's
  /// activation_checkpointing sets the same.
  parallel::RecomputeOptions recompute = {};

  // ---- Optimizers and communication. Most programs leave these alone.

  /// How prepared optimizers step; see optim/steps/optimizer_step.h.
  optim::PreparedOptimizerOptions optimizer = {};
  /// How long a collective may take, and how long the start waits for all ranks. This, `backend` and `cpu` are for the
  /// process that the Accelerator makes. A process that is passed in keeps its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The carrier of tensors between the ranks; see comm::GroupOptions.
  comm::BackendKind backend = comm::BackendKind::kAuto;
  /// As comm::GroupOptions::check, for all collectives; those of the Accelerator itself are always checked.
  std::optional<bool> check = {};

  // ---- Tracking and files.

  /// Trackers of the run, by name, tracking::LoggerType or object: {"tensorboard", "wandb"} (docs/tracking.md). The
  /// same on all ranks. Empty: init_trackers is refused.
  std::vector<tracking::LogWith> log_with = {};
  tracking::TrackingOptions tracking = {};
  /// Where the run's files go, and how checkpoints are named and removed (Accelerate's ProjectConfiguration).
  checkpoint::ProjectConfiguration project = {};

  // ---- Watch.

  /// Values that are not finite (docs/watch.md). HASTEN_WATCH switches the watch over the ranks off.
  WatchOptions watch = {};
};

struct PrepareOptions {
  /// An entry for each object: whether a model, or a loader's batches, are moved to the process's device. Ignored for
  /// other objects. Empty: as AcceleratorOptions::device_placement.
  std::vector<bool> device_placement = {};
};

/// Returns the answer of PrepareOptions for each of `num_objects` objects.
/// Throws: UsageError for another number of objects.
std::vector<bool> device_placements(const PrepareOptions& options, size_t num_objects, bool otherwise);

}  // namespace hasten
