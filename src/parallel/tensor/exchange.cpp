// See exchange.h.
#include "parallel/tensor/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "hasten/core/error.h"
#include "parallel/recompute/recorder.h"

namespace hasten::parallel::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Exchange dual(Exchange what) {
  switch (what.kind) {
    case ExchangeKind::kEnter:
      what.kind = ExchangeKind::kSum;
      break;
    case ExchangeKind::kSum:
      what.kind = ExchangeKind::kEnter;
      break;
    case ExchangeKind::kGatherForParts:
      what.kind = ExchangeKind::kReduceScatter;
      break;
    case ExchangeKind::kReduceScatter:
      what.kind = ExchangeKind::kGatherForParts;
      break;
    case ExchangeKind::kGather:
      what.kind = ExchangeKind::kSlice;
      break;
    case ExchangeKind::kSlice:
      what.kind = ExchangeKind::kGather;
      break;
    case ExchangeKind::kMove:
      std::swap(what.cut.dim, what.to_dim);
      std::swap(what.size, what.to_size);
      break;
  }
  return what;
}

at::Tensor gathered(CutAxis& axis, const at::Tensor& part, const Exchange& what) {
  const auto& group = axis.group();
  if (!divides_evenly(what.size, what.cut.blocks, axis.num_parts())) {
    auto parts = group.all_gather(part.movedim(what.cut.dim, 0).contiguous());
    for (auto& one : parts) one = one.movedim(0, what.cut.dim);
    return axis.join(parts, what.cut);
  }
  const at::Tensor mine = part.contiguous();
  const bool in_order = what.cut.dim == 0 && what.cut.blocks == 1;
  auto sizes = mine.sizes().vec();
  if (in_order) {
    sizes[0] *= axis.num_parts();
  } else {
    sizes.insert(sizes.begin(), axis.num_parts());
  }
  const at::Tensor all = at::empty(sizes, mine.options());
  group.all_gather_into_(all, in_order ? mine : mine.unsqueeze(0));
  return in_order ? all : axis.join(all.unbind(0), what.cut);
}

// A rank's part of the sum of all ranks' values.
at::Tensor reduce_scattered(CutAxis& axis, const at::Tensor& whole, const Exchange& what) {
  const auto& group = axis.group();
  if (!divides_evenly(what.size, what.cut.blocks, axis.num_parts())) {
    const at::Tensor sum = whole.contiguous().clone();
    group.all_reduce_(sum);
    return axis.cut_whole(sum, what.cut, axis.part()).contiguous();
  }
  if (what.cut.blocks > 1) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < axis.num_parts(); ++rank) parts.push_back(axis.cut_whole(whole, what.cut, rank));
    return group.reduce_scatter(at::stack(parts)).squeeze(0);
  }
  if (what.cut.dim == 0) return group.reduce_scatter(whole.contiguous());
  const at::Tensor rows = whole.movedim(what.cut.dim, 0).contiguous();
  return group.reduce_scatter(rows).movedim(0, what.cut.dim).contiguous();
}

at::Tensor moved(CutAxis& axis, const at::Tensor& part, const Exchange& what) {
  std::vector<at::Tensor> parts;
  for (int to = 0; to < axis.num_parts(); ++to) {
    const auto piece = part_of(what.to_size, axis.num_parts(), to);
    // The elements alone: pieces may differ by rank in both dimensions.
    parts.push_back(part.narrow(what.to_dim, piece.begin, piece.size()).contiguous().view({-1}));
  }
  auto pieces = axis.group().all_to_all(parts);
  auto sizes = part.sizes().vec();
  sizes[static_cast<size_t>(what.to_dim)] = part_of(what.to_size, axis.num_parts(), axis.part()).size();
  for (int from = 0; from < axis.num_parts(); ++from) {
    sizes[static_cast<size_t>(what.cut.dim)] = part_of(what.size, axis.num_parts(), from).size();
    pieces[static_cast<size_t>(from)] = pieces[static_cast<size_t>(from)].view(sizes);
  }
  return at::cat(pieces, what.cut.dim);
}

// The kind under which an exchange is counted; null for those that exchange nothing.
const char* counted_as(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kSum:
      return "sum";
    case ExchangeKind::kGatherForParts:
    case ExchangeKind::kGather:
      return "gather";
    case ExchangeKind::kReduceScatter:
      return "reduce_scatter";
    case ExchangeKind::kMove:
      return "move";
    default:
      return nullptr;
  }
}

at::Tensor carried_out(CutAxis& axis, const at::Tensor& x, const Exchange& what) {
  if (const char* const kind = counted_as(what.kind)) axis.count_exchange(kind, x);
  switch (what.kind) {
    case ExchangeKind::kEnter:
      return x.view_as(x);
    case ExchangeKind::kSum: {
      const at::Tensor sum = x.contiguous().clone();
      axis.group().all_reduce_(sum);
      return sum;
    }
    case ExchangeKind::kGatherForParts:
    case ExchangeKind::kGather:
      return gathered(axis, x, what);
    case ExchangeKind::kReduceScatter:
      return reduce_scattered(axis, x, what);
    case ExchangeKind::kSlice:
      return axis.cut_whole(x, what.cut, axis.part()).contiguous();
    case ExchangeKind::kMove:
      return moved(axis, x, what);
  }
  throw InternalError(Origin{"tensor"}, "an exchange of an unknown kind.");
}

at::Tensor carry_out(CutAxis& axis, const at::Tensor& x, const Exchange& what) {
  const interception::PassScope pass;
  const at::Tensor result = at_place(axis.options().place, [&] { return carried_out(axis, x, what); });
  // Autograd refuses writes to views that its functions give, and programs add biases in place.
  return what.kind != ExchangeKind::kEnter && result.is_view() ? result.clone() : result;
}

// A recomputed region drops the result, and repeats the exchange where backward needs it. All ranks do so in one order,
// since their backwards take the same steps.
at::Tensor repeatable(CutAxis& axis, const at::Tensor& x, const Exchange& what, at::Tensor result) {
  if (!axis.options().recompute_exchanges) return result;
  auto* const recorder = RecomputeRecorder::current();
  if (recorder == nullptr) return result;
  const interception::PassScope pass;
  recorder->note_made(result, x, [held = axis.shared_from_this(), what](const at::Tensor& again) {
    return carry_out(*held, again, what);
  });
  return result;
}

// The data of a node of autograd.
struct Held : torch::CustomClassHolder {
  std::shared_ptr<CutAxis> axis;
  Exchange what;
};

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, CutAxis* axis, const Exchange& what) {
    auto held = c10::make_intrusive<Held>();
    held->axis = axis->shared_from_this();
    held->what = what;
    context->saved_data["held"] = c10::IValue::make_capsule(std::move(held));
    return carry_out(*axis, x, what);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->saved_data["held"].toCapsule();
    const auto& of = static_cast<const Held&>(*held);
    return {exchange(*of.axis, gradients[0], dual(of.what)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor exchange(CutAxis& axis, const at::Tensor& x, const Exchange& what) {
  if (const auto* const inner = GlobalTensor::of(x)) {
    const Cut cut = inner->cut();
    if (cut.dim == what.cut.dim || cut.dim == what.to_dim) {
      // Both axes cut this dimension: the inner one steps aside.
      return exchange(axis, whole_of(x), what);
    }
    return inner->axis().wrap(exchange(axis, inner->local(), what), cut, x.size(cut.dim));
  }
  const auto* const placed = placed_by(x);
  if (placed != nullptr && placed != &axis) {
    auto& inner = const_cast<CutAxis&>(dynamic_cast<const CutAxis&>(*placed));
    const auto& place = *placed->placement(x);
    if (what.kind != ExchangeKind::kEnter) return exchange(axis, whole_of(x), what);
    return inner.wrap(ExchangeFunction::apply(x, &axis, what), place.cut,
                      place.sizes[static_cast<size_t>(place.cut.dim)]);
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) {
    return what.kind == ExchangeKind::kEnter ? x : repeatable(axis, x, what, carry_out(axis, x, what));
  }
  return repeatable(axis, x, what, ExchangeFunction::apply(x, &axis, what));
}

at::Tensor whole_of(const at::Tensor& value) {
  if (const auto* const global = GlobalTensor::of(value)) {
    return whole_of(exchange(global->axis(), global->local(),
                             {ExchangeKind::kGather, global->cut(), value.size(global->cut().dim)}));
  }
  const auto* const axis = dynamic_cast<const CutAxis*>(placed_by(value));
  if (axis == nullptr) return value;
  const auto& place = *axis->placement(value);
  return exchange(const_cast<CutAxis&>(*axis), value,
                  {ExchangeKind::kGather, place.cut, place.sizes[static_cast<size_t>(place.cut.dim)]});
}

}  // namespace hasten::parallel::tensor
