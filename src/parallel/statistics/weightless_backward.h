// Backward of a loss that counts nothing, on a rank whose model normalises over all ranks.
//
// The other ranks' SyncBatchNorms exchange sums in their backward. A rank that left its own out would let them wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>

namespace hasten::parallel {

struct WeightlessOptions {
  bool retain_graph = false;
  bool create_graph = false;
  /// Leaves whose gradients stay as they are; other leaves without a gradient get zeros.
  std::unordered_set<const c10::TensorImpl*> parameters = {};
};

/// Takes part with zeros in the exchanges of every SyncBatchNorm that `loss` depends on. Values that are no numbers do
/// not come in, and what the others' losses owe to this rank's rows is left out. Does nothing if there is none.
/// Collective: yes, as their backward. Blocks: yes. Throws: CommError.
void weightless_backward(const at::Tensor& loss, const WeightlessOptions& options);

}  // namespace hasten::parallel
