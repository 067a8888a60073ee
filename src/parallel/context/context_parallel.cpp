// See context_parallel.h.
#include "hasten/parallel/context/context_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>

#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"

namespace hasten::parallel {

ContextParallel::ContextParallel(comm::Group group, const ContextParallelOptions& options) {
  if (options.balance && options.by_heads) {
    throw UsageError(Origin{"context", group.rank(), group.world_size()},
                     "balance with by_heads (sp): each rank has all positions of some heads in attention, which is as "
                     "much work on each rank. Leave balance out, or use cp.");
  }
  if (group.world_size() == 1) return;
  const auto attention = options.by_heads ? tensor::SequenceAttention::kHeads : tensor::SequenceAttention::kGather;
  axis_ = tensor::make_axis(std::move(group), {.name = options.by_heads ? "sp" : "cp",
                                               .order = 1,
                                               .strict = options.strict,
                                               .attention = attention,
                                               .zigzag = options.balance,
                                               .recompute_exchanges = options.recompute_exchanges,
                                               .place = options.place});
}

at::Tensor ContextParallel::cut(const at::Tensor& whole, int64_t dim) const {
  if (!axis_) return whole;
  const Origin origin{"context", axis_->part(), axis_->num_parts()};
  if (!whole.defined()) {
    throw UsageError(origin, "a tensor to cut along the sequence is undefined; expected one with values.");
  }
  const int64_t place = dim < 0 ? dim + whole.dim() : dim;
  if (place < 0 || place >= whole.dim()) {
    throw UsageError(origin, "dimension ", dim, " of a tensor of ", count_text(whole.dim(), "dimension"),
                     "; expected one that is there.");
  }
  const int64_t size = whole.size(place);
  const bool zigzag = axis_->options().zigzag;
  const int64_t pieces = (zigzag ? 2 : 1) * axis_->num_parts();
  if (size % pieces != 0) {
    throw UsageError(origin, "a sequence of ", size, ", which ", zigzag ? "2 * " : "", axis_->options().name, " = ",
                     pieces, " does not divide", zigzag ? " (balance)" : "", ". Pad it to a multiple of ", pieces, ".");
  }
  const Cut cut{place, zigzag ? 2 : 1};
  return axis_->wrap(tensor::exchange(*axis_, whole, {tensor::ExchangeKind::kSlice, cut, size}), cut, size);
}

ParallelCounts ContextParallel::counts() const {
  return axis_ ? axis_->counts() : ParallelCounts{};
}

at::Tensor shift_labels(const at::Tensor& labels, int64_t ignored) {
  const at::Tensor end = at::full_like(labels.narrow(-1, 0, 1), ignored);
  return at::cat({labels.narrow(-1, 1, labels.size(-1) - 1), end}, -1);
}

}  // namespace hasten::parallel
