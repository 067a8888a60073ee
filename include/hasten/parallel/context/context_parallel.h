// ContextParallel: a sequence cut over the ranks of a group, the model's code and parameters whole.
//
// A value that was cut keeps the sizes of the whole sequence, so positions, rotary tables and masks stay right. Each
// rank computes its tokens. Only attention needs the others' keys and values. They are gathered, or each rank has all
// positions of some heads meanwhile. Gradients of parameters are summed over the ranks where they are used.
//
// Sources: Llama 3 (gathered keys and values); Jacobs et al. 2023, "DeepSpeed Ulysses" (heads).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/tensor/tensor_parallel.h"

namespace hasten::parallel {

struct ContextParallelOptions {
  /// Attention deals out heads (sp, Ulysses); the ranks must divide their number. False: keys and values are gathered
  /// (cp).
  bool by_heads = false;
  /// Divides a sequence into 2 * ranks parts. Rank r has the r-th from each end (zigzag), so that causal
  /// attention is as much work on each rank. Not with `by_heads`, where it is so anyway.
  bool balance = false;
  /// An operator without a rule is refused.
  bool strict = false;
  /// As TensorParallelOptions::recompute_exchanges and place.
  bool recompute_exchanges = false;
  RankPlace place = {};
};

/// A tensor, and the dimension of the sequence in it.
struct SequenceTensor {
  at::Tensor tensor;
  int64_t dim = 1;
};

/// A value handle. Values that it has cut keep what they need of it.
class ContextParallel {
 public:
  /// Throws: UsageError for `balance` with `by_heads`.
  explicit ContextParallel(comm::Group group, const ContextParallelOptions& options = {});

  /// Returns a value of the same sizes, of which this rank computes a part along `dim`. All ranks give the same whole
  /// value, such as token ids and targets. In a group of one: the value itself.
  /// Collective: no; what is computed of it is. Throws: UsageError for a dimension that is not there, or a
  /// size that the ranks (with `balance` twice the ranks) do not divide.
  at::Tensor cut(const at::Tensor& whole, int64_t dim) const;

  ParallelCounts counts() const;

 private:
  std::shared_ptr<tensor::CutAxis> axis_;
};

/// Returns labels moved by one along the last dimension, with `ignored` at the end: each position's label is the next
/// token. For causal models whose loss does not shift by itself, before the sequence is cut.
at::Tensor shift_labels(const at::Tensor& labels, int64_t ignored = -100);

}  // namespace hasten::parallel
