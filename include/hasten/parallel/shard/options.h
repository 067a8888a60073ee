// ShardOptions: how optimizer state, gradients and parameters are split over the ranks (ZeRO, FSDP).
//
// A single aggregate serves all strategies. FSDP's and DeepSpeed's settings map to it (plugins/shard_options.h), the
// engine reads nothing else (parallel/shard/sharded_model.h). Every strategy computes the same numbers as Ddp.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace hasten::parallel {

/// The parts that are split over the ranks, in ZeRO's numbers.
enum class ShardStage {
  /// Nothing: Ddp, FSDP's NO_SHARD.
  kNone = 0,
  /// Optimizer state and the step (ZeRO-1). Gradients are whole on each rank.
  kOptimizer = 1,
  /// And gradients (ZeRO-2, FSDP's SHARD_GRAD_OP).
  kGradients = 2,
  /// And parameters (ZeRO-3, FSDP's FULL_SHARD). On one host the same as kGradients, bit for bit.
  kParameters = 3,
};

/// The gradients of a window of accumulation, between its backwards; for kGradients and kParameters.
enum class GradientHold {
  /// Each backward reduces into the owners' slices: no memory beyond the slices.
  kSlices,
  /// Each rank keeps whole gradients until the window's last backward, as Ddp does: bit for bit Ddp's numbers.
  kWhole,
};

/// Which parameters form a unit: they are reduced together, and filled and released together.
struct WrapPolicy {
  enum class Rule {
    /// By the order of the parameters, cut at unit_bytes.
    kByUse,
    /// A unit for each module of the named classes. The rest is a further unit.
    kTransformer,
    /// By numbers of parameters.
    kSize,
    /// One unit.
    kNone,
  };
  Rule rule = Rule::kByUse;
  /// Class names, for kTransformer.
  std::vector<std::string> classes = {};
  /// Elements, for kSize.
  int64_t min_num_params = 0;
  /// FSDP's version whose rule applies, 1 or 2; for kTransformer and kSize.
  int version = 2;
  /// Modules whose parameters form one unit each, with those of all modules below, whatever the rule but kNone
  /// (DeepSpeed's leaf modules): by class, by whole name, or by the end of the whole name. Any rank may use any
  /// parameters at any time without it. It saves fills where all of a module is used at a time.
  std::vector<std::string> leaf_classes = {}, leaf_names = {}, leaf_suffixes = {};
  /// Bytes at which units are cut, for kByUse. Each rank needs two units of memory beside the model.
  int64_t unit_bytes = int64_t{4} << 20;
};

/// When the next unit is filled in backward, where units are filled at all.
enum class BackwardPrefetch {
  /// As soon as a unit is in use, before its gradients.
  kPre,
  /// When its gradients are there: one unit less is held.
  kPost,
  /// When it is read.
  kNone,
};

/// Where offloaded tensors rest.
enum class OffloadDevice { kNone, kCpu, kFile };

struct OffloadOptions {
  OffloadDevice device = OffloadDevice::kNone;
  /// The folder of the files, for kFile. It is created if missing.
  std::string path = {};
  /// Elements of one tile: state that is read, stepped and written together.
  int64_t tile_numel = int64_t{1} << 20;
  /// Bytes of one request to the file, and requests under way at a time, for each of num_threads.
  int64_t block_bytes = int64_t{1} << 20;
  int queue_depth = 8;
  int num_threads = 1;
  /// Tiles in memory: one is stepped while the next ones are read and the last ones are written. At least 2.
  int num_buffers = 3;
  /// For kCpu: the part of the process's cores that step, divided by the ranks of the host; at least one thread
  /// (DeepSpeed's cpuadam_cores_perc). The threads of everything else stay. 0: they step, too.
  double step_cores = 0;
  /// For kCpu, of optimizer state on a device: the part of it that rests and is stepped on the CPU, from 0 to 1. The
  /// rest stays on the device (DeepSpeed's ratio). It is cut between units. On CPUs and for kFile it has no effect.
  double ratio = 1;
};

/// Counts of a rank that reads parameters that other hosts keep (ShardOptions::across_hosts).
struct UnitCounts {
  /// Units that it has put together, and that it found put together by other ranks of the host.
  int64_t fills = 0, shared = 0;
  /// Bytes that it has taken from other hosts.
  int64_t pulled_bytes = 0;
  /// The most bytes of units that it has held at a time.
  int64_t max_held_bytes = 0;
};

struct ShardOptions {
  ShardStage stage = ShardStage::kParameters;
  /// Units are released after forward and filled again for backward, where parameters are filled at all.
  bool reshard_after_forward = true;
  WrapPolicy wrap = {};
  /// Units as lists of parameters' names, in the order of the model, instead of `wrap`'s. They are the same on all
  /// ranks. Names of parameters that are not split count nothing. Parameters in no unit become a further unit.
  std::function<std::vector<std::vector<std::string>>(const torch::nn::Module&)> units = {};
  /// The axis of `mesh` over which is sharded (FSDP's HYBRID_SHARD over a mesh, MiCS). Over the other axes state,
  /// gradients and parameters are replicated: each group along the axis has a mapping of its own. Empty: all ranks.
  std::string shard_over = {};
  /// The ranks as a grid, the last axis varying fastest (comm/mesh/device_mesh.h); for shard_over.
  std::vector<comm::MeshAxis> mesh = {};
  /// For kParameters on several hosts: each keeps its part of the parameters, and takes units from the others when they
  /// are read. False: each host keeps all (HYBRID_SHARD), and gradients and stepped slices alone are sent.
  bool across_hosts = true;
  /// Limits of filled units, in bytes; 0 for two units.
  int64_t max_live_bytes = 0;
  /// Units that the order of the last step reads again within this many bytes stay filled, beyond max_live_bytes.
  int64_t max_reuse_bytes = 0;
  /// Bytes that are filled ahead of their use.
  int64_t prefetch_bytes = int64_t{64} << 20;
  /// Whether the unit that followed the last time is filled ahead of its use, in forward and in backward.
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// At most two units are held or on their way, if max_live_bytes does not allow more. False: as many as
  /// prefetch_bytes allows (FSDP's limit_all_gathers).
  bool limit_all_gathers = true;
  /// Parameters of fewer elements stay on every host, as long as all of them together have at most persist_total_numel.
  int64_t persist_numel = 0;
  int64_t persist_total_numel = std::numeric_limits<int64_t>::max();
  /// Where optimizer state rests between steps.
  OffloadOptions optimizer_offload = {};
  /// Where parameters rest.
  OffloadOptions parameter_offload = {};
  GradientHold hold = GradientHold::kSlices;
  /// "bfloat16" or "float16". Under autocast of this dtype, operators get copies of float32 parameters that owners cast
  /// once a step. They replace casts by each rank in each forward. Parameters stay float32. Empty: no copies.
  std::string param_dtype = {};
  /// Names of parameters, or of modules with all below them, that are replicated as Ddp does.
  std::vector<std::string> ignored = {};
  /// Gives values to modules that were built without memory.
  std::function<void(torch::nn::Module&)> init = {};
  /// Width of the model, for "auto" values of a DeepSpeed configuration.
  std::optional<int64_t> hidden_size = {};
};

}  // namespace hasten::parallel
