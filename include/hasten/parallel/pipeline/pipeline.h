// Pipeline: a model's layers divided into stages over the ranks of a group, its code untouched.
//
// The program's forward runs whole on every rank. An operator belongs to the highest stage among its inputs: that
// stage's rank computes it, the others make a value of the result's sizes. So a forward may do anything: skips, several
// tensors, an encoder and a decoder. Parameters of other stages stay in the model and in optimizers, without elements.
// The batch is split into microbatches, and an order (plan/orders.h) says which rank computes which of them when.
//
// Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
// Clusters"; Qi et al. 2024, "Zero Bubble Pipeline Parallelism".
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/nested.h"
#include "hasten/parallel/layout/rank_place.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/parallel/tensor/parallel_counts.h"
#include "hasten/plan/orders.h"
#include "hasten/plan/simulate.h"

namespace hasten::parallel {

struct PipelineOptions {
  /// The first module of each stage but the first, by name: {"layers.12"}. Empty: blocks are cut so that the most
  /// expensive stage costs least (stage_plan.h).
  std::vector<std::string> stages = {};
  /// Stages of each rank.
  int chunks = 1;
  /// Parts of a batch, which follow each other through the stages. 0: as many as ranks. A batch of fewer samples has
  /// one for each sample.
  int microbatches = 0;
  /// kAuto: the first forward_backward runs kDefault and measures it. From then on it is the order of least simulated
  /// time, the same on all ranks, which is logged once. kZbvZeroBubble is left out: its stages lie on other ranks.
  plan::OrderKind order = plan::OrderKind::kDefault;
  /// With kAuto: MiB of activations that a rank may keep; 0: no limit. The results of all operators of a stage count.
  int activation_mib = 0;
  /// With kAuto: groups in which the ranks of several pipelines exchange anything, such as those of data parallelism.
  /// The costs of rank 0 of each are passed on, group after group. Ranks of a cut (TensorParallel) need no entry.
  std::vector<comm::Group> order_groups = {};
  /// An order of the program's own, instead of `order` and `microbatches`: torch's text, which parse_order_csv reads.
  std::string order_csv = {};
  /// The dimension along which each tensor of a batch is split, in the order of comm::map_tensors; -1: every microbatch
  /// has the whole tensor. Tensors without an entry are split along dimension 0.
  std::vector<int64_t> chunk_dims = {};
  /// Words for this rank in errors of messages.
  RankPlace place = {};
};

/// A value handle. The parameters keep what they need of it. The module must outlive it.
class Pipeline {
 public:
  /// Divides the module into stages. Each rank keeps the parameters of its own, with rank 0's values, and frees the
  /// others. Optimizers may be made before or after, but not have state. In a group of one nothing changes.
  /// Collective: yes. Blocks: until all ranks have come. Throws: UsageError for what plan_stages and plan::make_order
  /// refuse, or if the ranks' modules differ; CommError.
  Pipeline(torch::nn::Module& module, const comm::Group& group, const PipelineOptions& options = {});

  /// Splits the batch, runs forward and backward of the parts, and returns their mean loss, a scalar on every rank.
  /// `loss(part)` returns the mean loss of a part, computed by the module. Parts count by their numbers of samples, or
  /// by `weight(part)`, such as a number of tokens. Gradients are those of the mean times `scale`, added to what is
  /// there. All ranks give the same batch. Parts of one shape take one way through `loss`. At the first of a shape it
  /// is called once more, for the record, on all ranks together. An exception of one rank ends the step on all.
  /// Collective: yes. Blocks: until this rank's part is done and all have the loss. Throws: the exceptions of `loss`;
  /// UsageError if parts take different ways, or for a value that a stage gets too late; CommError.
  template <class Batch, class Loss>
  at::Tensor forward_backward(const Batch& batch, Loss&& loss, const std::function<double(const Batch&)>& weight = {},
                              double scale = 1.0) const {
    const auto parts = split(batch);
    std::vector<double> weights;
    for (const Batch& part : parts.batches) {
      if (weight) weights.push_back(weight(part));
    }
    return train(calls_of(parts.batches, loss), parts.keys, weights.empty() ? parts.weights : weights, scale);
  }

  /// Splits the batch, runs `output(part)` on the parts without gradients, and returns the outputs joined along
  /// dimension 0. With `gather` every rank gets them, else the rank that computes them; others an undefined tensor.
  /// Collective: yes. Blocks: until this rank's part is done. Throws: as forward_backward.
  template <class Batch, class Output>
  at::Tensor forward(const Batch& batch, Output&& output, bool gather = true) const {
    const auto parts = split(batch);
    return infer(calls_of(parts.batches, output), parts.keys, gather);
  }

  /// torch's clip_grad_norm_ of the whole model: each parameter counts once. Returns the norm before.
  /// Collective: yes. Blocks: until all have come. Throws: as gradient_norm.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) const;
  /// Returns whole parameters and buffers by name, on every rank.
  /// Collective: yes. Blocks: until all have come. Throws: CommError.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Returns what is opened round a prepared model's forward. Outside of forward_backward a forward without gradients
  /// runs through the stages as it is; one with gradients is refused.
  std::shared_ptr<ForwardHook> forward_hook() const;
  /// Returns the stage of each parameter, by name; the first of a tied one.
  const std::map<std::string, int>& stages() const noexcept;
  const comm::Group& group() const noexcept;
  const plan::PipelineOrder& order(int microbatches) const;
  /// Returns the measured cost of each stage, equal on all ranks; empty but with kAuto behind a first forward_backward.
  const std::vector<plan::StageCost>& costs() const noexcept;
  /// Returns the messages that this rank has sent to other stages; all 0 in a group of one.
  ParallelCounts counts() const;

 private:
  struct Impl;
  template <class Batch>
  struct Parts {
    std::vector<Batch> batches;
    std::vector<double> weights;
    std::vector<std::string> keys;
  };
  using Calls = std::vector<std::function<at::Tensor()>>;

  template <class Batch>
  Parts<Batch> split(const Batch& batch) const {
    const std::vector<std::vector<at::Tensor>> tensors = split_tensors(comm::tensors_of(batch));
    Parts<Batch> parts;
    for (const auto& part : tensors) {
      size_t next = 0;
      parts.batches.push_back(comm::map_tensors(batch, [&](const at::Tensor&) { return part[next++]; }));
      parts.weights.push_back(num_samples(part));
      parts.keys.push_back(key_of(part));
    }
    return parts;
  }
  template <class Batch, class Fn>
  static Calls calls_of(const std::vector<Batch>& batches, Fn& fn) {
    Calls calls;
    for (const Batch& part : batches) calls.push_back([&part, &fn] { return at::Tensor(fn(part)); });
    return calls;
  }
  std::vector<std::vector<at::Tensor>> split_tensors(const std::vector<at::Tensor>& batch) const;
  double num_samples(const std::vector<at::Tensor>& part) const;
  std::string key_of(const std::vector<at::Tensor>& part) const;
  at::Tensor train(const Calls& calls, const std::vector<std::string>& keys, std::vector<double> weights,
                   double scale) const;
  at::Tensor infer(const Calls& calls, const std::vector<std::string>& keys, bool gather) const;

  std::shared_ptr<Impl> impl_;
};

/// Returns weight(batch); nothing without a function.
template <class Batch>
std::optional<double> weight_of(const Batch& batch, const std::function<double(const Batch&)>& weight) {
  return weight ? std::optional(weight(batch)) : std::nullopt;
}

/// Returns a value of a forward without gradients on every rank; another tensor as it is.
/// Collective: yes, for a value on a stage. Blocks: then. Throws: CommError.
at::Tensor value_everywhere(const at::Tensor& value);
/// Returns true if the value is on one stage, so that other ranks have no memory of it.
bool is_staged_value(const at::Tensor& value) noexcept;
/// Returns sizes and type of a value, how it is cut and on which stage it is: "[8, 16] Float, cut over tp (dim 1), part
/// 0 of 2 is [8, 8]". Nothing is sent, so that a single rank may print it.
std::string describe_value(const at::Tensor& value);

}  // namespace hasten::parallel
