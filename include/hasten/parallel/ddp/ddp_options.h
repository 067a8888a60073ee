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
  /// What exchanges a bucket's gradients (comm_hook.h, power_sgd.h); unset: an all-reduce of them as they
  /// are.
  CommHook comm_hook = {};
  /// The same parameters have gradients in every step: those that had none on any rank in the first step are
  /// not sent from then on, and one that gets one after all is an error. Without it, any may come and go.
  bool static_graph = false;
  /// False: a parameter that has no gradient on any rank is an error that names it (DeepSpeed's ignore_unused_parameters);
  /// else it is named in a warning, once.
  bool allow_unused = true;
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
