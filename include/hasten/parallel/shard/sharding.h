// Sharding: the models of an Accelerator whose state is split over the ranks, and the steps of their optimizers.
//
// Each rank steps the slices that it owns, in the memory that its host shares, by the optimizer's own class or
// the fused kernels, which see slices in the place of parameters. So names, groups, learning rates and the
// state's types stay libtorch's. Between steps any rank may read all parameters without a collective. The
// layout is sharded_model.h's, gradients are shard_bucket.h's.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/ddp/gradient_exchange.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"
#include "hasten/training/gradient_state.h"

namespace hasten::parallel {

namespace shard {
struct SplitParameter;
using SplitParameters = std::unordered_map<const c10::TensorImpl*, SplitParameter>;
}  // namespace shard

/// A piece of optimizer state as this rank has it.
struct ShardedStatePiece {
  std::string parameter;
  /// "exp_avg", "momentum_buffer" …
  std::string name;
  /// The elements of the flat parameter that `tensor` belongs to.
  ShardInterval interval;
  std::vector<int64_t> parameter_sizes;
  at::Tensor tensor;
};

class Sharding {
 public:
  /// `group`: all ranks. Collective: no. Blocks: no. Throws: nothing.
  Sharding(comm::Group group, ShardOptions options);
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  const ShardOptions& options() const noexcept { return options_; }
  /// Whether backwards inside a window of accumulation exchange their gradients.
  bool exchanges_each_backward() const noexcept;

  /// The exchange of one more model, for its Ddp (DdpOptions::exchange), over the model's group.
  std::shared_ptr<GradientExchange> make_exchange(const comm::Group& group);

  /// Whether any of the optimizer's parameters is split.
  bool steps(const torch::optim::Optimizer& optimizer) const;

  /// Parameters' storages of which this rank has a private copy, since the program wrote to them.
  /// Collective: no. Blocks: no. Throws: nothing.
  int64_t num_private_copies() const;

  /// Runs `own_step`, the optimizer's step, on this rank's slices. Writes that the program made to parameters
  /// since the last step count if all ranks made the same ones. Classes other than libtorch's SGD, Adam, AdamW,
  /// Adagrad and RMSprop step whole parameters, which are dealt to the ranks. Collective: yes. Blocks: until
  /// all ranks have stepped. Throws: UsageError naming the parameter if ranks hold different values, or for
  /// LBFGS; CommError; what own_step throws.
  at::Tensor step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& own_step);

  /// This rank's pieces of the optimizer's state, and the numbers beside them (step counts) unchanged.
  /// Collective: no. Blocks: no. Throws: UsageError for a class whose state is not known here.
  std::vector<ShardedStatePiece> sharded_state(const torch::optim::Optimizer& optimizer) const;
  /// The whole optimizer state, of the parameters' shapes, on every rank; steps counted come as "step", of one
  /// number. State that is loaded whole into the optimizer is cut by its next step.
  /// Collective: yes. Blocks: yes. Throws: as sharded_state; CommError.
  std::vector<ShardedStatePiece> full_state(const torch::optim::Optimizer& optimizer) const;

  /// The p-norm of the gradients of `parameters`; of split ones each rank sums its slices.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  double gradient_norm(const std::vector<at::Tensor>& parameters, double norm_type) const;
  /// Multiplies the gradients by `factor`, or cuts their elements to [-limit, limit], each rank its slices.
  /// Collective: yes. Blocks: until all ranks have. Throws: CommError.
  void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) const;
  /// torch's clip_grad_norm_ over split gradients: returns the norm before.
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) const;
  void clip_gradients(const std::vector<at::Tensor>& parameters, double limit) const;

 private:
  struct Impl;
  at::Tensor step_in_tiles(torch::optim::Optimizer& optimizer, const shard::SplitParameters& split,
                           const std::function<at::Tensor()>& own_step);
  comm::Group group_;
  ShardOptions options_;
  std::unique_ptr<Impl> impl_;
};

// ---- For a front door that may have sharding or not: null means that nothing is split.

/// Null in a world of one and for ShardStage::kNone. Steps of the optimizers that `gradients` is shared with run in
/// it. Collective: no (the steps are). Blocks: no. Throws: as the constructor.
std::shared_ptr<Sharding> make_sharding(const comm::Group& group, const ShardOptions& options,
                                        training::GradientState& gradients);
DdpOptions with_sharding(DdpOptions options, const std::shared_ptr<Sharding>& sharding);
bool exchanges_each_backward(const std::shared_ptr<Sharding>& sharding) noexcept;
/// torch's functions of these names, on split gradients too.
/// Collective: where something is split. Blocks: then. Throws: CommError.
double clip_grad_norm_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                       double max_norm, double norm_type);
void clip_grad_value_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                      double limit);

}  // namespace hasten::parallel
