// Data parallelism: every rank holds the whole model, computes on its own batch, and the gradients are
// averaged while backward goes on (torch.nn.parallel.DistributedDataParallel).
//
// The module is not wrapped or rewritten: a hook on each parameter's gradient accumulator copies the gradient
// into a bucket and starts the bucket's all-reduce when its last gradient has come; a callback at the end of
// backward waits. So it works however the module is called, and libtorch's own zero_grad() in both forms
// works, because the gradients share the bucket's memory without being autograd views of it. Which bucket
// holds what: bucket_plan.h; the step itself: src/parallel/ddp/reducer.cpp; losses with weights, and ranks on
// which a backward passes the model by: backward.h.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/compress/comm_hook.h"
#include "hasten/parallel/ddp/bucket_plan.h"
#include "hasten/parallel/ddp/gradient_exchange.h"

namespace hasten::parallel {

struct DdpOptions {
  BucketLimits buckets = {};
  /// Buffers (running statistics) follow rank 0: sent during backward, so that the next forward starts from
  /// them.
  bool broadcast_buffers = true;
  /// What exchanges a bucket's gradients (comm_hook.h, power_sgd.h); unset: an all-reduce of them as they
  /// are.
  CommHook comm_hook = {};
  /// The same parameters have gradients in every step: those that nobody had one for in the first step are
  /// not sent from then on, and one that gets one after all is an error. Without it, any may come and go.
  bool static_graph = false;
  /// Nothing is sent before backward is over (Apex's delay_allreduce): for backwards that leave nothing to
  /// overlap with, or whose timing is measured.
  bool delay_allreduce = false;
  /// Gradients are divided by it before they are summed, and by world_size / it afterwards, against overflow
  /// in half precision (Apex's gradient_predivide_factor). Unset: by world_size before.
  std::optional<double> gradient_predivide_factor = {};
  /// False: gradients are the sum over the ranks, not their mean (Apex's gradient_average). Weights of losses count as before.
  bool average = true;
  /// Gradients of floating dtypes travel in this one (kBFloat16: half the bytes, sums of 8 bits). Unset: in
  /// their own.
  std::optional<c10::ScalarType> communication_dtype = {};
  /// Autograd writes gradients of at least so many bytes of parameters on the CPU right where they are
  /// exchanged, instead of having them copied there; unset: none. libtorch's CPU allocator is wrapped for it,
  /// for the whole process; one that is not libtorch's own is left alone.
  std::optional<int64_t> in_place_bytes = int64_t{64} << 10;
  /// Every so many steps the ranks compare checksums of their parameters, which costs a pass over them and
  /// one message; 0 for never.
  int64_t check_parameters_every = 1000;

  /// Another way for gradients than all-reduced buckets, and another place for parameters (shard/sharding.h);
  /// one object for one model.
  std::shared_ptr<GradientExchange> exchange = {};
  /// Makes it, where the group of the model's own is not known beforehand.
  std::function<std::shared_ptr<GradientExchange>(const comm::Group&)> make_exchange = {};

  double predivide(int world_size) const { return gradient_predivide_factor.value_or(world_size); }
};

class Join;

/// Where local SGD stands with a model (local_sgd.h).
struct LocalSgdState {
  bool now = false;
  /// Steps of this rank since the parameters were averaged.
  int64_t num_steps = 0;
};

/// Keeps a module's gradients averaged over a group. Move-only; its end takes the hooks off and leaves the
/// module and its gradients as they are. The module must outlive it.
class Ddp {
 public:
  using Models = std::vector<std::shared_ptr<const Ddp>>;

  /// Checks that all ranks hold the same names, shapes and dtypes, gives every rank the parameters and
  /// buffers of rank 0, and sets the hooks; parameters that a model in `before` exchanges already are left to
  /// it. In a world of one: nothing at all. Collective: yes. Blocks: yes. Throws: UsageError naming the first
  /// difference between the ranks, or for options out of range; CommError. Each later backward through the
  /// module is collective too, unless it is held back, and throws CommError.
  Ddp(torch::nn::Module& module, comm::Group group, const DdpOptions& options = {},
      const Models& before = {});
  ~Ddp();
  Ddp(Ddp&&) noexcept;
  Ddp& operator=(Ddp&&) noexcept;

  /// Every `true` holds the exchange back until a `false` has followed: backward adds gradients up on their
  /// rank. All ranks must hold back alike; a scope does it (no_sync.h). Collective: no. Blocks: no. Throws:
  /// nothing.
  void hold_back(bool more) const noexcept;
  bool holds_back() const noexcept;
  /// The same for a window whose gradients are exchanged with every batch, although the optimizer waits
  /// (sync_each_batch): nothing is held back.
  void wait(bool more) const noexcept;

  /// The plan in use, by index into the module's trainable parameters in order; empty in a world of one.
  const BucketPlan& plan() const noexcept;

  torch::nn::Module& module() const noexcept;
  /// Whether the ranks of a host hold parameters once, so that none may change them alone.
  bool shares_parameters() const noexcept;

  /// Looks whether to(), load(), requires_grad_() or register_parameter() have changed the module since, and
  /// hooks it again if so, as the constructor does. Called by what runs forward and backward.
  /// Collective: yes, where something has changed. Blocks: then. Throws: as the constructor; UsageError on
  /// all ranks in a loop of uneven length, where those that have run out could not take part.
  void refresh_if_changed() const;
  /// The same, if the module is about to be trained: in training mode, with gradients on.
  void before_forward() const;

  // ---- What backward.h needs; none of it is collective unless it says so.

  /// Before a backward of any model's, which ends its window or not: looks whether parameters have changed
  /// since the window's last backward, though prepared optimizers had done as much as now (BackwardContext).
  /// Then it warns, once, and the ranks compare their parameters in the window's exchange. It warns as well,
  /// once, if the window's gradients are gone.
  void begin_backward(int64_t optimizer_calls, bool ends_window) const;
  /// Whether earlier backwards of the window that the present one ends have left gradients on this rank.
  bool has_held_gradients() const noexcept;
  /// After a backward through it that did not end its window.
  void end_held_backward(int64_t optimizer_calls) const;
  /// The parameters that it exchanges.
  const std::vector<at::Tensor>& parameters() const noexcept;
  /// One backward more of the present window, whose loss counts `weight`, and whose exchange ends the window
  /// or not.
  void add_weight(double weight, bool ends) const;
  bool has_weight() const noexcept;
  /// The window's weights have been divided out, but a later backward of the same batch may count still.
  void may_go_on() const noexcept;
  /// From now on backward launches exchanges, and finish_exchange waits for them.
  void finish_later(bool later) const noexcept;
  /// Exchanges so far.
  int64_t num_steps() const noexcept;
  /// An exchange that offers what gradients there are, for a backward that passes the model by on this rank.
  /// Collective: yes. Blocks: finish_exchange does. Throws: CommError.
  void start_exchange() const;
  void finish_exchange() const;
  bool is_exchanging() const noexcept;
  /// Forgets an exchange that an exception has left.
  void abandon_exchange() const noexcept;
  /// Which ranks have data in the next exchanges: the first that has, whose buffers all get (rank 0 at
  /// first), and whether all have. Those without take no steps, so parameters are not compared meanwhile.
  void set_active(int first, bool all) const noexcept;
  /// Every rank gets root's parameters and buffers. Collective: yes. Blocks: yes. Throws: CommError.
  void broadcast_from(int root) const;
  /// Makes the gradients of all its parameters undefined.
  void drop_gradients() const;
  /// Whether any rank had a gradient in the last exchange.
  bool had_gradients() const noexcept;
  /// In a world of one, and in local SGD: divides the window's weights out, as an exchange does.
  void settle_alone() const;
  /// Ends the window's weights, as settle_alone does where there are gradients.
  void drop_weight() const noexcept;

  // ---- What join.h and local_sgd.h need.

  /// A loop of uneven length begins, in which this is model `place` of those that it trains; null: it ends.
  /// The Join must stay valid.
  void set_join(Join* join, size_t place) const noexcept;
  /// In such a loop, tells all ranks that `call` comes for this model. Gives whether it is in one.
  /// Collective: there. Blocks: there. Throws: as Join::announce.
  bool announce(const char* call) const;
  bool is_joining() const noexcept;
  LocalSgdState& local_sgd() const noexcept;
  /// Parameters were averaged: they are the same on all ranks.
  void set_averaged() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::parallel
