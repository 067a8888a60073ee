// Batch normalisation over the batches of a whole group, as a function.
//
// Statistics of the ranks' parts are exchanged and merged (Chan, Golub and LeVeque 1979). The order is the same on
// every rank, so that all hold the same bits. The sum of squares less the square of the sum is never formed, since it
// loses digits if the mean is large. Backward exchanges two sums a channel. It can itself be differentiated.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "parallel/statistics/sync_group.h"

namespace hasten::parallel {

/// The tensors of one batch_norm; weight and bias, running_mean and running_var may be undefined in pairs.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

struct BatchNormNumbers {
  double momentum;
  double eps;
};

/// `input` is [batch, channels, …]; the batch may be empty. Statistics are at least of single precision; the
/// output is of input's dtype.
/// Collective: yes, its backward too. Blocks: yes. Throws: UsageError on all ranks for one value a channel
/// over all ranks (on the CPU only: elsewhere knowing it would wait for the device); CommError.
at::Tensor global_batch_norm(const at::Tensor& input, const BatchNormTensors& tensors, const BatchNormNumbers& numbers,
                             const c10::intrusive_ptr<SyncGroup>& group);

/// Returns the connections over which this node of autograd's graph exchanges sums; null for other nodes.
c10::intrusive_ptr<SyncGroup> sync_group_of(torch::autograd::Node& node);

}  // namespace hasten::parallel
