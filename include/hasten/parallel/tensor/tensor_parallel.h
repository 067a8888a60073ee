// TensorParallel: a model's parameters cut over the ranks of a group, its code untouched.
//
// Parameters are cut where they are. The tensor object, its name and its place in the optimizer stay; its sizes become
// those of this rank's part. So Ddp, ZeRO, optimizers and clipping see an ordinary smaller model. What operators make
// of cut parameters has the sizes of the whole value, with this rank's part behind it. So head counts and views in the
// model's code stay right. Plans: tensor_plan.h.
//
// Sources: Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
// Transformer Models"; the names of styles follow transformers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/layout/cut.h"
#include "hasten/parallel/layout/rank_place.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/parallel/tensor/parallel_counts.h"
#include "hasten/parallel/tensor/tensor_plan.h"

namespace hasten::parallel {

namespace tensor {
class CutAxis;
class CutParameters;
}  // namespace tensor

struct TensorParallelOptions {
  /// Names of modules and how they are cut. Empty: by the model's classes (model_rules.h).
  TensorPlan plan = {};
  /// Activations between cut layers are cut on a sequence or batch, and not kept whole on every rank (Megatron's
  /// sequence parallelism).
  bool sequence_parallel = false;
  /// An operator without a rule is refused. False: it runs on whole values, with one warning a name.
  bool strict = false;
  /// In recomputed regions (recompute.h) results of exchanges are dropped, and backward repeats the exchanges.
  bool recompute_exchanges = false;
  /// Words for this rank in errors of exchanges.
  RankPlace place = {};
};

/// A value handle. The parameters keep what they need of it.
class TensorParallel {
 public:
  /// Cuts the module's parameters: each rank keeps its part, of rank 0's values, and frees the whole. In a group of one
  /// nothing changes.
  /// Collective: yes. Blocks: until all ranks have come. Throws: UsageError with all conflicts of the plan, or if no
  /// rule and no plan is for this model; CommError.
  TensorParallel(torch::nn::Module& module, comm::Group group, const TensorParallelOptions& options = {});

  /// Returns what is opened round a forward without gradients.
  std::shared_ptr<ForwardHook> forward_hook() const;
  ParallelCounts counts() const;
  const comm::Group& group() const noexcept;
  /// Returns the cuts in force, by parameter.
  const std::map<std::string, Cut>& cuts() const noexcept { return cuts_; }

 private:
  std::shared_ptr<tensor::CutAxis> axis_;
  std::shared_ptr<tensor::CutParameters> parameters_;
  std::map<std::string, Cut> cuts_;
};

/// Returns this rank's part of a value; a whole value as it is.
at::Tensor local_value(const at::Tensor& value);
/// Returns a value with memory: gathered if it is cut. Gradients go back to the parts. Code behind it is the same on
/// all ranks. Collective: yes, for a cut value. Blocks: then. Throws: CommError.
at::Tensor whole_value(const at::Tensor& value);
/// Returns true if the value is cut over ranks, so that it has no memory of its own.
bool is_cut_value(const at::Tensor& value) noexcept;

}  // namespace hasten::parallel
