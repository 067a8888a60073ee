// See hasten/parallel/state_dict.h.
#include "hasten/parallel/parameters/state_dict.h"

namespace hasten::parallel {

std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) state.emplace(item.key(), item.value().detach());
  }
  return state;
}

}  // namespace hasten::parallel
