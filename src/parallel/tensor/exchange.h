// The exchanges between the ranks of an axis, and what their gradients do.
//
// A wrong gradient here is silent, so each kind names its dual: the gradient of an exchange is the dual exchange of the
// gradient. So second derivatives are right as well.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/tensor/cut_axis.h"

namespace hasten::parallel::tensor {

enum class ExchangeKind {
  /// A whole value enters code that differs by rank: nothing; gradients are summed (kSum).
  kEnter,
  /// Parts of a sum leave: summed; gradients stay (kEnter).
  kSum,
  /// A cut value is gathered for code that differs by rank; gradients are summed and cut (kReduceScatter).
  kGatherForParts,
  /// Parts of a sum are summed and cut; gradients are gathered (kGatherForParts).
  kReduceScatter,
  /// A cut value is gathered for code that is the same on all ranks; each takes its part of the gradient (kSlice).
  kGather,
  /// A whole value becomes this rank's part; gradients are gathered (kGather).
  kSlice,
  /// A value cut on one dimension becomes one cut on another; gradients go the other way.
  kMove,
};

struct Exchange {
  ExchangeKind kind = ExchangeKind::kEnter;
  /// The cut of the part that is given or made; for kMove the cut before.
  Cut cut = {};
  /// Size of the whole value along the cut dimension.
  int64_t size = 0;
  /// For kMove: the dimension that is cut afterwards, and its whole size.
  int64_t to_dim = -1, to_size = 0;
};

/// Carries out an exchange on this rank's part (kEnter, kSum, kSlice: on the whole value). Records the gradient where
/// it is wanted. `x` may be a global tensor or a cut parameter of an inner axis.
/// Collective: yes, but kEnter and kSlice; their gradients are. Blocks: then. Throws: CommError.
at::Tensor exchange(CutAxis& axis, const at::Tensor& x, const Exchange& what);

/// Returns a value without cuts, of all axes; parameters too. Gradients go back to the parts.
/// Collective: yes, for a cut value. Blocks: then. Throws: CommError.
at::Tensor whole_of(const at::Tensor& value);

}  // namespace hasten::parallel::tensor
