// Norm and clipping of gradients whose parameters are cut, beside sharding.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/shard/sharding.h"

namespace hasten::parallel {

/// The ranks of a run, for norms that count each element of each parameter once.
struct ClipParts {
  /// All ranks.
  comm::Group everyone;
  Layout layout;
  /// Null where nothing is split.
  std::shared_ptr<Sharding> sharding = {};
};

/// torch's clip_grad_norm_ of the whole parameters, whether a layout cuts them or not. Returns the norm before.
/// Collective: yes, over the ranks of a model where it is cut, over all where something is split. Blocks: until they
/// have come. Throws: as clip_gradients_.
double clip_grad_norm_(const ClipParts& parts, const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type);

/// Returns true if all gradients of these parameters are finite on all ranks.
/// Collective: as clip_grad_norm_. Blocks: until all have come. Throws: CommError.
bool has_finite_gradients(const ClipParts& parts, const std::vector<at::Tensor>& parameters);

}  // namespace hasten::parallel
