// Data parallelism: every rank holds the whole model, computes on its own batch, and the gradients are
// averaged while backward goes on (torch.nn.parallel.DistributedDataParallel).
//
// The module is not wrapped or rewritten: a hook on each parameter's gradient accumulator copies the gradient
// into a bucket and starts the bucket's all-reduce when its last gradient has come; a callback at the end of
// backward waits. So it works however the module is called, and libtorch's own zero_grad() in both forms
// works, because the gradients share the bucket's memory without being autograd views of it. Which bucket
// holds what: bucket_plan.h; the step itself: src/parallel/ddp/reducer.cpp.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "hasten/comm/group.h"
#include "hasten/parallel/bucket_plan.h"
#include "hasten/parallel/comm_hook.h"

namespace hasten::parallel {

struct DdpOptions {
  BucketLimits buckets = {};
  /// Buffers (running statistics) follow rank 0: sent during backward, so that the next forward starts from
  /// them.
  bool broadcast_buffers = true;
  /// What exchanges a bucket's gradients (comm_hook.h, power_sgd.h); unset: an all-reduce of them as they
  /// are.
  CommHook comm_hook = {};
};

/// Keeps a module's gradients averaged over a group. Move-only; its end takes the hooks off and leaves the
/// module and its gradients as they are. The module must outlive it.
class Ddp {
 public:
  /// Checks that all ranks hold the same names, shapes and dtypes, gives every rank the parameters and
  /// buffers of rank 0, and sets the hooks. In a world of one: nothing at all. Collective: yes. Blocks: yes.
  /// Throws: UsageError naming the first difference between the ranks; CommError. Each later backward through
  /// the module is collective too, unless it is held back, and throws CommError.
  Ddp(torch::nn::Module& module, comm::Group group, const DdpOptions& options = {});
  ~Ddp();
  Ddp(Ddp&&) noexcept;
  Ddp& operator=(Ddp&&) noexcept;

  /// Every `true` holds the exchange back until a `false` has followed: backward adds gradients up on their
  /// rank. All ranks must hold back alike; a scope does it (no_sync.h). Collective: no. Blocks: no. Throws:
  /// nothing.
  void hold_back(bool more) const noexcept;

  /// The plan in use, by index into the module's trainable parameters in order; empty in a world of one.
  const BucketPlan& plan() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::parallel
