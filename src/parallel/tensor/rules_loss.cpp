// The rule of cross entropy: over classes that are cut, or over cut samples. See rules.h.
#include <ATen/ops/cross_entropy_loss.h>

#include <cmath>
#include <utility>

#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

constexpr size_t kTarget = 1, kWeight = 2, kReduction = 3, kIgnored = 4, kSmoothing = 5;

// The loss of each sample over cut classes: three sums of a number a sample.
at::Tensor losses_of_classes(RuleCall& call, const Argument& x, const at::Tensor& target, int64_t dim) {
  const at::Tensor scores = x.local.scalar_type() == at::kDouble ? x.local : x.local.to(at::kFloat);
  const auto own = call.axis.part_of(x.cut_size());
  const at::Tensor others = target.lt(own.begin).logical_or(target.ge(own.end));
  const double smoothing = call[kSmoothing].toDouble();
  at::Tensor most = at::full_like(target, -INFINITY, scores.options());
  if (own.size() > 0) most = scores.detach().amax(dim).contiguous().clone();
  call.axis.reduce_(most, comm::ReduceOp::kMax);
  const at::Tensor shifted = scores - most.unsqueeze(dim);
  const at::Tensor total = call.sum(shifted.exp().sum(dim));
  at::Tensor chosen = at::zeros_like(most);
  if (own.size() > 0) {
    const at::Tensor index = (target - own.begin).masked_fill(others, 0).unsqueeze(dim);
    chosen = shifted.gather(dim, index).squeeze(dim).masked_fill(others, 0.0);
  }
  at::Tensor losses = total.log() - call.sum(chosen * (1 - smoothing));
  if (smoothing > 0) {
    losses = losses - call.sum(shifted.sum(dim)) * (smoothing / static_cast<double>(x.cut_size()));
  }
  return losses;
}

void give_over_classes(RuleCall& call, const Argument& x, int64_t dim) {
  const at::Tensor target = call.whole(call.argument(kTarget));
  const int64_t reduction = call.integer(kReduction);
  const at::Tensor counted = target.ne(call.integer(kIgnored));
  const at::Tensor strange = strange_indices(target, x.cut_size(), counted, "Target is out of bounds.");
  const at::Tensor losses =
      losses_of_classes(call, x, target, dim).masked_fill(counted.logical_not(), 0.0).masked_fill(strange, NAN);
  // Computed in float32, and given in the type that the scores have, as without a cut.
  const auto give = [&](const at::Tensor& loss) { call.give(loss.to(x.local.scalar_type())); };
  if (reduction == at::Reduction::None) return give(losses);
  const at::Tensor sum = losses.sum();
  give(reduction == at::Reduction::Sum ? sum : sum / counted.sum());
}

// Each rank has samples of its own.
void give_over_samples(RuleCall& call, const Argument& x) {
  const Argument target = call.argument(kTarget);
  const at::Tensor own_target = call.part(target, x.cut);
  const int64_t reduction = call.integer(kReduction), ignored = call.integer(kIgnored);
  call[0] = x.local;
  call[kTarget] = own_target;
  if (reduction == at::Reduction::None) return call.give(call.wrap(call.call(), x.cut, x.cut_size()));
  call[kReduction] = static_cast<int64_t>(at::Reduction::Sum);
  const at::Tensor sum = call.sum(call.call());
  if (reduction == at::Reduction::Sum) return call.give(sum);
  call.give(sum / call.sum(own_target.ne(ignored).sum()));
}

void cross_entropy_rule(RuleCall& call) {
  const Argument x = call.argument(0), target = call.argument(kTarget);
  const int64_t dim = x.dim() > 1 ? 1 : 0;
  const bool by_index = target.local.defined() && !target.local.is_floating_point();
  if (!x.is_cut() || !by_index || call.has_tensor(kWeight)) return call.call_on_whole();
  if (x.cut.dim == dim && GlobalTensor::of(x.local) == nullptr && x.cut.blocks == 1)
    return give_over_classes(call, x, dim);
  if (x.cut.dim == 0 && x.dim() == 2) return give_over_samples(call, x);
  call.call_on_whole();
}

}  // namespace

void add_loss_rules(Rules& rules) {
  rules["aten::cross_entropy_loss"] = cross_entropy_rule;
}

}  // namespace hasten::parallel::tensor
