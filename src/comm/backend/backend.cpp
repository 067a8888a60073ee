// The common part of backends; see backend.h.
#include "hasten/comm/backend/backend.h"

#include <torch/types.h>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::comm {

at::Tensor Backend::allocate(int64_t num_bytes) {
  return torch::empty({num_bytes}, at::kByte);
}

Backend::Started Backend::receive_any(at::Tensor, int, std::shared_ptr<int>) {
  throw UsageError(Origin{"comm"}, "receive_any: ", name(),
                   " has two ways between ranks and cannot wait for both at once. Name the rank to receive from.");
}

std::string RankNames::of(int rank) const {
  return shown.empty() ? std::to_string(rank) : shown[static_cast<size_t>(rank)];
}

std::string RankNames::of(const std::vector<int>& ranks) const {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(of(rank));
  return join(names);
}

}  // namespace hasten::comm
