// DdpOptions: how a model's gradients are exchanged.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
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
  /// Parameters and buffers of all ranks become rank 0's when the model is prepared. False: they must be equal already,
  /// which checksums show (FSDP's sync_module_states, DistributedDataParallel's init_sync).
  bool sync_module_states = true;
  /// The exchange of a bucket's gradients (comm_hook.h, power_sgd.h). Unset: an all-reduce of them as they are.
  CommHook comm_hook = {};
  /// If true, the same parameters have gradients in every step. Parameters that had none on any rank in the first step
  /// are not sent from then on. If such a parameter gets a gradient after all, that is an error. If false, any may come
  /// and go.
  bool static_graph = false;
  /// If false, a parameter that has no gradient on any rank is an error that names it (DeepSpeed's
  /// ignore_unused_parameters). Otherwise a warning names it, once.
  bool allow_unused = true;
  /// Nothing is sent before backward is over (Apex's delay_allreduce): for backwards that leave nothing to
  /// overlap with, or whose timing is measured.
  bool delay_allreduce = false;
  /// Gradients are divided by it before they are summed, and by world_size / it afterwards, against overflow
  /// in half precision (Apex's gradient_predivide_factor). Unset: by world_size before.
  std::optional<double> gradient_predivide_factor = {};
  /// False: gradients are the sum over the ranks, not their mean (Apex's gradient_average). Weights of losses count as
  /// before.
  bool average = true;
  /// Gradients of floating dtypes travel in this one (kBFloat16: half the bytes, sums of 8 bits). Unset: in
  /// their own.
  std::optional<c10::ScalarType> communication_dtype = {};
  /// Classes of modules ("Linear") for whose own parameters communication_dtype is. Gradients of others travel in their
  /// own dtype. Empty: it is for all (DeepSpeed's torch_autocast.lower_precision_safe_modules).
  std::vector<std::string> communication_classes = {};
  /// Autograd writes gradients of at least this many bytes of parameters on the CPU right into the exchanged memory,
  /// instead of having them copied. Unset: none. libtorch's CPU allocator is wrapped for it, for the whole process. An
  /// allocator that is not libtorch's own stays unwrapped.
  std::optional<int64_t> in_place_bytes = int64_t{64} << 10;
  /// Interval, in steps, at which the ranks compare checksums of their parameters; 0 for never. It costs a pass over
  /// them and one message. They do so after the first 10 steps, too, before save_state, and in end_training.
  int64_t check_parameters_every = 1000;
  /// Returns true if parameters are compared after `steps` steps. Ranks that drift apart mostly do so from the start.
  bool compares_after(int64_t steps) const noexcept {
    constexpr int64_t kFirst = 10;
    return check_parameters_every > 0 && (steps == kFirst || steps % check_parameters_every == 0);
  }

  /// Another way for gradients than all-reduced buckets, and another place for parameters (parallel/shard/sharding.h).
  /// An object serves one model.
  std::shared_ptr<GradientExchange> exchange = {};
  /// Makes it, where the group of the model's own is not known beforehand.
  std::function<std::shared_ptr<GradientExchange>(const comm::Group&)> make_exchange = {};

  double predivide(int world_size) const { return gradient_predivide_factor.value_or(world_size); }
};

/// How a model's exchanges go in the loop around them.
struct ExchangeSettings {
  /// Backward launches an exchange and leaves the waiting to finish().
  bool finishes_later = false;
  /// The rank whose buffers all get.
  int buffers_from = 0;
  /// Whether all ranks' parameters are to be the same: those without data take no steps.
  bool comparable = true;
};

}  // namespace hasten::parallel
