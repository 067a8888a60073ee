// Rules of sums, means, norms of layers, and of operators along one dimension. See rules.h.
#include <ATen/ops/exp.h>

#include <algorithm>
#include <utility>

#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

// sum and mean, over all dimensions or some.
void reduce(RuleCall& call, bool mean) {
  const Argument x = call.argument(0);
  const bool some = call.size() > 2 && call[1].isIntList() && !call[1].toIntVector().empty();
  if (!some && call.size() > 2 && !call[1].isNone() && !call[1].isIntList()) return call.call_on_whole();
  std::vector<int64_t> dims = some ? call[1].toIntVector() : std::vector<int64_t>();
  bool over_cut = !some;
  int64_t before = 0;
  for (auto& dim : dims) {
    if (dim < 0) dim += x.dim();
    over_cut = over_cut || dim == x.cut.dim;
    before += dim < x.cut.dim ? 1 : 0;
  }
  if (!over_cut) {
    const bool keeps = call[2].toBool();
    return call.call_on_parts({x.cut.dim - (keeps ? 0 : before), x.cut.blocks}, x.cut_size());
  }
  call[0] = x.local;
  if (!mean) return call.give(call.sum(call.call()));
  // The mean of this rank's elements counts by their number.
  const double share = static_cast<double>(x.local.size(x.cut.dim)) / static_cast<double>(x.cut_size());
  at::Tensor part = call.call();
  if (share == 0) part = part.nan_to_num(0);
  call.give(call.sum(part * share));
}

void sum_rule(RuleCall& call) {
  reduce(call, false);
}
void mean_rule(RuleCall& call) {
  reduce(call, true);
}

// Reductions that each rank makes of its part, if not over the cut dimension.
void dims_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  std::vector<int64_t> dims;
  if (call.size() > 2 && call[1].isIntList()) dims = call[1].toIntVector();
  if (call.size() > 2 && call[1].isInt()) dims = {call.integer(1)};
  if (dims.empty()) return call.call_on_whole();
  int64_t before = 0;
  for (auto& dim : dims) {
    if (dim < 0) dim += x.dim();
    if (dim == x.cut.dim) return call.call_on_whole();
    before += dim < x.cut.dim ? 1 : 0;
  }
  const bool keeps = call[2].isBool() && call[2].toBool();
  call.call_on_parts({x.cut.dim - (keeps ? 0 : before), x.cut.blocks}, x.cut_size());
}

// The sizes stay: cumulative sums.
void along_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isInt() || call.dim(1, x.dim()) == x.cut.dim) return call.call_on_whole();
  call.call_on_parts(x.cut, x.cut_size());
}

// The exponentials' largest argument, and their sum over all ranks.
struct Exponentials {
  at::Tensor shifted, total;
};

Exponentials exponentials(RuleCall& call, const Argument& x, int64_t dim) {
  at::Tensor most = x.local.detach().amax(dim, true);
  most = most.contiguous().clone();
  call.axis.reduce_(most, comm::ReduceOp::kMax);
  const at::Tensor shifted = x.local - most;
  return {shifted, call.sum(at::exp(shifted).sum(dim, true))};
}

bool over_cut_dim(RuleCall& call, const Argument& x) {
  return call[1].isInt() && call.dim(1, x.dim()) == x.cut.dim;
}

// Each rank uses the whole sum for its own part.
at::Tensor total_for_parts(RuleCall& call, const at::Tensor& total) {
  return exchange(call.axis, total, {ExchangeKind::kEnter});
}

// The same on all ranks, which exchange alike: whether any of them has an empty part. The last part is the smallest.
bool any_empty(const RuleCall& call, const Argument& x) {
  const int ranks = call.axis.num_parts();
  return part_size(x.cut_size(), x.cut.blocks, ranks, ranks - 1) == 0;
}

// In the type that the result has: softmax(scores, -1, torch::kFloat).
Argument in_type_of_result(RuleCall& call) {
  Argument x = call.argument(0);
  if (call.size() > 2 && call[2].isInt()) x.local = x.local.to(static_cast<at::ScalarType>(call[2].toInt()));
  return x;
}

void softmax_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!over_cut_dim(call, x)) return along_rule(call);
  if (any_empty(call, x) || GlobalTensor::of(x.local) != nullptr) return call.call_on_whole();
  const auto e = exponentials(call, in_type_of_result(call), x.cut.dim);
  call.give(call.wrap(at::exp(e.shifted) / total_for_parts(call, e.total), x.cut, x.cut_size()));
}

void log_softmax_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!over_cut_dim(call, x)) return along_rule(call);
  if (any_empty(call, x) || GlobalTensor::of(x.local) != nullptr) return call.call_on_whole();
  const auto e = exponentials(call, in_type_of_result(call), x.cut.dim);
  call.give(call.wrap(e.shifted - total_for_parts(call, e.total).log(), x.cut, x.cut_size()));
}

// Norms over the last dimensions; weights are used on parts.
void layer_norm_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const auto normalized = static_cast<int64_t>(call[1].toIntVector().size());
  if (!x.is_cut() || x.cut.dim >= x.dim() - normalized) return call.call_on_whole();
  call[0] = x.local;
  for (size_t i = 2; i < call.size(); ++i) {
    if (call.has_tensor(i)) call[i] = call.whole_for_parts(call.argument(i));
  }
  call.give(call.wrap(call.call(), x.cut, x.cut_size()));
}

}  // namespace

void add_reduce_rules(Rules& rules) {
  rules["aten::sum"] = sum_rule;
  rules["aten::mean"] = mean_rule;
  for (const char* name : {"aten::amax", "aten::amin", "aten::argmax", "aten::argmin", "aten::any", "aten::all",
                           "aten::logsumexp", "aten::max", "aten::min"}) {
    rules[name] = dims_rule;
  }
  rules["aten::cumsum"] = rules["aten::cumprod"] = along_rule;
  rules["aten::softmax"] = rules["aten::_softmax"] = softmax_rule;
  rules["aten::log_softmax"] = rules["aten::_log_softmax"] = log_softmax_rule;
  rules["aten::layer_norm"] = rules["aten::rms_norm"] = layer_norm_rule;
}

}  // namespace hasten::parallel::tensor
