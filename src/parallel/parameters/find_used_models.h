// Which models a loss depends on: a walk over autograd's graph, before backward.
//
// It is only needed with several models, since then each backward may be for some of them. It ends as soon as all have
// been found.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hasten::parallel {

/// For each list of parameters, whether one of them is a leaf of `loss`'s graph.
std::vector<bool> find_used_models(const at::Tensor& loss, const std::vector<std::vector<at::Tensor>>& parameters);

}  // namespace hasten::parallel
