// Recompute: activations are dropped in forward and computed again in backward (activation checkpointing).
//
// The forward of a region is recorded, operator by operator. A tensor that autograd would keep is dropped if it can be
// computed again from the region's inputs and parameters. The first gradient that needs it replays the operators that
// lead to it. The program's code does not run again: closures and hooks run once, and modules stay as they are. Random
// operators replay with the state that their generator had. Batch normalisation does not update its statistics again.
// Gradients are bit for bit those of a run without it.
//
// Inputs of regions stay in memory, or wait on the host (RecomputeOptions::offload). Results of operators that cannot
// be replayed stay: those of other libraries, and of autograd functions written in C++. With retain_graph, what was
// computed again stays until the graph goes.
//
// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; the options follow PyTorch's
// torch.utils.checkpoint and FSDP's activation_checkpointing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/parallel/parameters/forward_scope.h"

namespace hasten::parallel {

struct RecomputeOptions {
  /// Activations of prepared models are computed again.
  bool enabled = false;
  /// The modules that form a region each: names ("encoder.layers.3"), ECMAScript patterns that a whole name matches
  /// ("encoder[.]layers[.][0-9]+"), or classes ("TransformerEncoderLayer"). Parameters outside of them end a region.
  /// Empty: the children of the outermost ModuleList and Sequential modules, or else the model's children. A model
  /// without children is one region.
  std::vector<std::string> modules = {};
  /// The most regions: where there are more modules, neighbours form one together, in numbers as equal as possible.
  /// Fewer regions keep fewer inputs, and hold more of a region's activations at a time in backward (DeepSpeed's
  /// number_checkpoints). 0: one for each module.
  int64_t num_regions = 0;
  /// Neighbours that form a region together (Megatron's uniform recompute_num_layers); the last may have fewer. Not
  /// beside num_regions. 0: by num_regions.
  int64_t region_size = 0;
  /// The first modules alone form regions, and activations of the others stay (Megatron's block). Below 0: all do.
  int64_t max_modules = -1;
  /// On an accelerator, inputs of regions wait in pinned memory of the host and come back ahead of their region's
  /// backward (FSDP's activation offload). Models of the CPU have them there anyway.
  bool offload = false;
  /// Operators whose results alone are dropped, without "aten::". A result counts if one of them has made it, by itself
  /// or inside of it. All else stays that autograd keeps (Megatron's selective recomputation: attention_operators()).
  /// Empty: all results are dropped.
  std::vector<std::string> operators = {};
};

/// The operators of attention whose results are as large as its scores: softmax and dropout, in all their forms. The
/// scores themselves autograd does not keep. scaled_dot_product_attention keeps none of these where it is fused.
std::vector<std::string> attention_operators();

/// While it exists, what this thread computes with gradients is a region.
class RecomputeRegion {
 public:
  RecomputeRegion();
  ~RecomputeRegion();
  RecomputeRegion(const RecomputeRegion&) = delete;
  RecomputeRegion& operator=(const RecomputeRegion&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `function(arguments...)` as a region and returns what it returns: `x = recompute(block, x)`. `function` runs
/// once. Backward throws c10::Error, as libtorch does, if an input or a parameter of the region has been changed in
/// place since. Throws: the exceptions of `function`; UsageError if another autograd engine
/// is installed.
template <class Function, class... Arguments>
decltype(auto) recompute(Function&& function, Arguments&&... arguments) {
  const RecomputeRegion region;
  return std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

/// Returns the hook that makes regions of a model's forward, for the model's ForwardScopes.
/// Throws: UsageError naming an entry of `modules` that fits no module, or one of `operators` that is not there; for a
/// num_regions below 0, or beside region_size; if another autograd engine is installed.
std::shared_ptr<ForwardHook> recompute_hook(torch::nn::Module& module, const RecomputeOptions& options);

/// Counts of this process since its start, for tests and for looking at what is saved.
struct RecomputeCounts {
  /// Tensors that autograd wanted to keep and that were dropped, and that were kept.
  int64_t dropped = 0, kept = 0;
  /// Operators run again.
  int64_t replayed = 0;
  /// Bytes of inputs that were sent to the host.
  int64_t bytes_sent = 0;
};
RecomputeCounts recompute_counts() noexcept;

}  // namespace hasten::parallel
