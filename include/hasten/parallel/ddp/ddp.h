// Data parallelism: every rank holds the whole model, computes on its own batch, and the gradients are
// averaged while backward goes on (torch.nn.parallel.DistributedDataParallel).
//
// The module is not wrapped or rewritten. A hook on each parameter's gradient accumulator copies the gradient into a
// bucket. When the bucket's last gradient has come, the hook starts its all-reduce. A callback at the end of backward
// waits. So it works however the module is called. libtorch's own zero_grad() in both forms works, because the
// gradients share the bucket's memory without being autograd views of it. The contents of buckets: bucket_plan.h. The
// step itself: src/parallel/ddp/reducer.cpp. Losses with weights, and ranks on which a backward passes the model by:
// backward.h.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/bucket_plan.h"
#include "hasten/parallel/ddp/ddp_options.h"
#include "hasten/parallel/ddp/model_step.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

/// A model's part in a loop of uneven length (training/joinable.h), where it is number `place` of the models.
struct JoinedModel {
  training::JoinScope* scope = nullptr;
  size_t place = 0;

  bool is_joining() const noexcept { return scope != nullptr; }
  /// In such a loop, notifies all ranks that `operation` comes for this model. Returns whether it is in one.
  /// Collective: there. Blocks: there. Throws: as JoinScope::notify.
  bool notify(const char* operation) const;
};

/// Keeps a module's gradients averaged over a group. Move-only. Its end takes the hooks off and leaves the module and
/// its gradients as they are. The module must outlive it.
class Ddp {
 public:
  using Models = std::vector<std::shared_ptr<const Ddp>>;

  /// Checks that all ranks hold the same names, shapes and dtypes. Gives every rank the parameters and buffers of rank
  /// 0, and sets the hooks. It leaves out parameters that a model in `before` exchanges already. In a world of one:
  /// nothing at all. Collective: yes. Blocks: yes. Throws: UsageError naming the first difference between the ranks, or
  /// for options out of range; CommError. Each later backward through the module is collective too, unless it is held
  /// back, and throws CommError.
  Ddp(torch::nn::Module& module, comm::Group group, const DdpOptions& options = {}, const Models& before = {});
  ~Ddp();
  Ddp(Ddp&&) noexcept;
  Ddp& operator=(Ddp&&) noexcept;

  /// Returns the plan in use, by index into the module's trainable parameters in order. Empty in a world of one.
  const BucketPlan& plan() const noexcept;

  torch::nn::Module& module() const noexcept;
  /// Returns true if the ranks of a host hold parameters once, so that none may change them alone.
  bool shares_parameters() const noexcept;

  /// Checks whether to(), load(), requires_grad_() or register_parameter() have changed the module since. If so, sets
  /// the hooks again, as the constructor does. Called by what runs forward and backward.
  /// Collective: yes, where something has changed. Blocks: then. Throws: as the constructor; UsageError on all ranks in
  /// a loop of uneven length, where those that have run out could not take part.
  void refresh_if_changed() const;

  /// Returns the parameters that it exchanges.
  const std::vector<at::Tensor>& parameters() const noexcept;
  /// Compares the parameters of all ranks. Nothing for parameters that ranks share, in local SGD between two averages,
  /// in loops of uneven length, and with check_parameters_every = 0. Collective: yes. Blocks: yes. Throws: UsageError
  /// naming the first that differs; CommError.
  void check_parameters() const;
  /// Every rank gets root's parameters and buffers; of shared parameters the buffers alone. Collective: yes. Blocks:
  /// yes. Throws: CommError.
  void broadcast_from(int root) const;

  /// Returns the backwards and the exchange under way, for backward.h, no_sync.h and local_sgd.h.
  ModelStep& step() const noexcept;
  /// Interface of the model for loops of uneven length, for join.h and local_sgd.h.
  JoinedModel& joined() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Ddp::refresh_if_changed, if the module is about to be trained: in training mode, with gradients on.
/// Collective, Blocks, Throws: as that.
void before_forward(const Ddp& model);

}  // namespace hasten::parallel
