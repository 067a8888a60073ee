// ParallelOptions: how the ranks of a run divide a model and its data among them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hasten/plan/orders.h"

namespace hasten::parallel {

struct ParallelOptions {
  /// Ranks of each axis, under Accelerate's names without "_size". -1 on one of them: the ranks that the others leave.
  /// If all are 1, all ranks are data parallel.
  int dp_replicate = 1;
  /// Ranks among which optimizer state, gradients or parameters are split (AcceleratorOptions::shard). Above 1 without
  /// `shard`: all of these are, as FSDP does.
  int dp_shard = 1;
  /// Ranks that hold parts of a sequence: keys and values are gathered (cp), or heads are dealt out meanwhile (sp).
  int cp = 1, sp = 1;
  /// With cp: each rank has a part of the beginning and one of the end of a sequence. Causal attention is as much work
  /// on each rank then. The length is a multiple of 2 * cp.
  bool balance = false;
  /// With cp or sp: the dimension of the sequence in the first tensor that `model(x)` gets. It is cut there.
  int64_t sequence_dim = 1;
  /// Ranks that hold parts of the layers.
  int tp = 1;
  /// Ranks that hold stages of a pipeline; loops call forward_backward then.
  int pp = 1;
  /// With tp: activations between layers are cut on a sequence or batch (Megatron's sequence parallelism).
  bool sequence_parallel = false;
  /// With tp, cp or sp: operators without a rule are refused.
  bool strict = false;
  /// With tp, cp or sp, and recompute: results of exchanges are dropped, too, and backward repeats the exchanges: more
  /// to send, less memory.
  bool recompute_exchanges = false;
  /// With pp and the order kAuto: MiB of activations that a rank may keep; 0: no limit.
  int activation_mib = 0;
  /// With tp: names of modules and how they are cut (parallel/tensor/tensor_plan.h). Empty: by the model's classes.
  std::vector<std::pair<std::string, std::string>> tensor_plan = {};
  /// With pp, as in PipelineOptions (parallel/pipeline/pipeline.h): the first module of each stage but the first.
  std::vector<std::string> stages = {};
  /// Stages of each rank, and parts of a batch.
  int chunks = 1, microbatches = 0;
  /// Elements of the model's lists of modules on each stage; `chunks` follows from it. 0: `chunks` counts.
  int layers_per_stage = 0;
  plan::OrderKind order = plan::OrderKind::kDefault;
  std::vector<int64_t> chunk_dims = {};
};

}  // namespace hasten::parallel
