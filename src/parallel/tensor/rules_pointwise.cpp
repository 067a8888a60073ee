// Rules of pointwise operators, copies and random masks. See rules.h.
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

// The cut of the result: that of the first cut argument whose dimension the others do not spread, counted over the
// dimensions of the largest.
struct Wanted {
  int64_t dims = 0;
  Cut cut = {};
  int64_t size = 0;
};

// The size of a dimension of the result.
int64_t spread_size(RuleCall& call, const Wanted& of, int64_t dim) {
  int64_t size = 1;
  call.replace([&](const at::Tensor& tensor) {
    const int64_t own = dim - (of.dims - tensor.dim());
    if (own >= 0 && call.axis.look(tensor).size(own) != 1) size = call.axis.look(tensor).size(own);
    return tensor;
  });
  return size;
}

Wanted wanted_layout(RuleCall& call) {
  Wanted found;
  call.replace([&](const at::Tensor& tensor) {
    found.dims = std::max(found.dims, tensor.dim());
    return tensor;
  });
  call.replace([&](const at::Tensor& tensor) {
    const Argument x = call.axis.look(tensor);
    if (!x.is_cut() || found.cut.is_cut()) return tensor;
    const int64_t dim = x.cut.dim + found.dims - x.dim();
    if (spread_size(call, found, dim) != x.cut_size()) return tensor;
    found.cut = {dim, x.cut.blocks};
    found.size = x.cut_size();
    return tensor;
  });
  return found;
}

// Returns the part of an argument that goes with parts which are cut as `to` says.
at::Tensor matching(RuleCall& call, const at::Tensor& tensor, const Wanted& to) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  const Argument x = call.axis.look(tensor);
  const int64_t dim = to.cut.dim - (to.dims - x.dim());
  const bool has_dim = dim >= 0 && x.sizes[static_cast<size_t>(dim)] == to.size;
  if (has_dim) return call.part(x, {dim, to.cut.blocks});
  if (!x.is_cut()) return call.entered(x);
  return call.whole_for_parts(x);
}

// Returns the first of the tensors if all of them are values that are cut alike, or numbers: that is most calls.
// Else null.
const GlobalTensor* all_alike(const RuleCall& call) {
  const GlobalTensor* first = nullptr;
  for (size_t i = 0; i < call.size(); ++i) {
    const c10::IValue& value = call[i];
    if (value.isTensorList() || (value.isList() && !value.isIntList())) return nullptr;
    if (!call.has_tensor(i) || value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) continue;
    const auto* const own = GlobalTensor::of(value.toTensor());
    if (own == nullptr || &own->axis() != &call.axis) return nullptr;
    if (first != nullptr && (own->cut() != first->cut() || own->sizes() != first->sizes())) return nullptr;
    if (first == nullptr) first = own;
  }
  return first;
}

// A copy, or what else keeps sizes: on the part.
void unary_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!x.is_cut()) return call.call_on_whole();
  call.call_on_parts(x.cut, x.cut_size());
}

void random_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!x.is_cut()) return call.call_on_whole();
  const bool writes = call.op.schema().is_mutable();
  const at::Tensor self = call[0].toTensor();
  const CutAxis::OwnRandom own(call.axis, x.local.device());
  call.call_on_parts(x.cut, x.cut_size());
  if (writes) call.give(self);
}

// The rule of operators whose result has one shape and place with another tensor.
void like_rule(RuleCall& call) {
  unary_rule(call);
}

// Sizes of its own: a whole value.
void new_rule(RuleCall& call) {
  call.replace([&](const at::Tensor& tensor) { return call.axis.look(tensor).local; });
  call.give(call.call());
}

// Memory that is to be filled, such as a cache for more tokens: cut as the tensor is if the cut dimension has its size.
void new_empty_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  call.replace([&](const at::Tensor& tensor) { return call.axis.look(tensor).local; });
  const bool is_alike = x.is_cut() && call[1].isIntList() && call[1].toIntVector().size() == x.sizes.size() &&
                        call[1].toIntVector()[static_cast<size_t>(x.cut.dim)] == x.cut_size();
  if (!is_alike) return call.give(call.call());
  auto sizes = call[1].toIntVector();
  sizes[static_cast<size_t>(x.cut.dim)] = x.local.size(x.cut.dim);
  call[1] = sizes;
  call.give(call.wrap(call.call(), x.cut, x.cut_size()));
}

// The same on all ranks: branches of the program must not part.
void equal_rule(RuleCall& call) {
  const Argument a = call.argument(0), b = call.argument(1);
  if (a.tensor.is_same(b.tensor)) return call.give_value(true);
  if (a.sizes != b.sizes) return call.give_value(false);
  const at::NoGradGuard no_grad;
  const Cut cut = a.is_cut() ? a.cut : b.cut;
  const bool own = call.part(a, cut).equal(call.part(b, cut));
  const at::Tensor all = at::full({}, own ? 1 : 0, at::TensorOptions(at::kInt));
  call.axis.reduce_(all, comm::ReduceOp::kMin);
  call.give_value(all.item<int>() == 1);
}

}  // namespace

void pointwise_rule(RuleCall& call) {
  const auto& results = call.op.schema().returns();
  if (results.size() != 1 || results[0].type()->kind() != c10::TypeKind::TensorType) return call.call_on_whole();
  const bool writes = call.op.schema().is_mutable();
  if (const auto* const first = writes ? nullptr : all_alike(call)) {
    const Cut cut = first->cut();
    return call.call_on_parts(cut, first->size(cut.dim));
  }
  const Wanted to = wanted_layout(call);
  const at::Tensor self = call.has_tensor(0) ? call[0].toTensor() : at::Tensor();
  if (writes && !call.axis.look(self).is_cut()) {
    // A whole tensor takes in a cut one.
    call.replace([&](const at::Tensor& tensor) { return call.whole(call.axis.look(tensor)); });
    call.call();
    return;
  }
  // Values of one element in their cut dimension, which the others spread: no rank's part is that of the result.
  if (!to.cut.is_cut()) {
    call.replace([&](const at::Tensor& tensor) { return call.whole(call.axis.look(tensor)); });
    call.call();
    return;
  }
  call.replace([&](const at::Tensor& tensor) { return matching(call, tensor, to); });
  const at::Tensor result = call.call();
  call.give(writes ? self : call.wrap(result, to.cut, to.size));
}

void add_unary_rules(Rules& rules) {
  for (const char* name : {"aten::contiguous", "aten::to", "aten::clone", "aten::_to_copy", "aten::detach",
                           "aten::alias", "aten::_conj", "aten::resolve_conj", "aten::resolve_neg", "aten::positive"}) {
    rules[name] = unary_rule;
  }
  for (const char* name : {"aten::dropout", "aten::dropout_", "aten::native_dropout", "aten::bernoulli",
                           "aten::bernoulli_", "aten::rand_like", "aten::randn_like", "aten::normal_", "aten::uniform_",
                           "aten::alpha_dropout", "aten::rrelu_with_noise"}) {
    rules[name] = random_rule;
  }
  for (const char* name : {"aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like"}) {
    rules[name] = like_rule;
  }
  for (const char* name : {"aten::new_zeros", "aten::new_ones", "aten::new_full"}) rules[name] = new_rule;
  rules["aten::new_empty"] = new_empty_rule;
  // Not tagged as pointwise.
  rules["aten::copy_"] = pointwise_rule;
  rules["aten::equal"] = equal_rule;
}

}  // namespace hasten::parallel::tensor
