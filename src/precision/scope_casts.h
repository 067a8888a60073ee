// Casts of leaves that one thread's outermost Autocast scope shares among uses, as at::autocast's cache does.
//
// A weight that one scope uses several times has one cast node, so that its gradients add up in half precision as under
// at::autocast. The end of the outermost scope drops them. Only scopes of this room count; in others nothing is shared.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace hasten::precision::detail {

struct ScopeCasts {
  int depth = 0;
  std::unordered_map<const void*, at::Tensor> nodes = {};
};

/// Returns this thread's.
ScopeCasts& scope_casts();

}  // namespace hasten::precision::detail
