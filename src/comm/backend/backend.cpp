// The common part of backends; see backend.h.
#include "comm/backend/backend.h"

#include <torch/types.h>

#include "hasten/core/text.h"

namespace hasten::comm {

at::Tensor Backend::allocate(int64_t num_bytes) {
  return torch::empty({num_bytes}, at::kByte);
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
