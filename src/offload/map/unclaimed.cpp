// See unclaimed.h.
#include "offload/map/unclaimed.h"

#include "hasten/core/error.h"
#include "hasten/interception/claim.h"
#include "hasten/offload/map/tree_of.h"

namespace hasten::offload {

void require_unclaimed(const torch::nn::Module& module, const std::string& what) {
  for (const auto& item : named_tensors(module)) {
    const std::string claim = interception::claim_of(item.tensor);
    if (claim.empty()) continue;
    throw UsageError(
        Origin{"offload"}, what, ": '", item.name, "' cannot be placed, it is ", claim,
        ". Place a model of its own, which a checkpoint is loaded into, or let the handles of this one end "
        "first (undispatch, remove_placement).");
  }
}

}  // namespace hasten::offload
