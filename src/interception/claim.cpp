// See claim.h.
#include "hasten/interception/claim.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "hasten/interception/interceptor.h"

namespace hasten::interception {
namespace {

template <class Holder>
std::string words_of(const Holder& holder) {
  const auto* const claim = dynamic_cast<const Claim*>(holder.get());
  return claim == nullptr ? "" : claim->words();
}

}  // namespace

std::string claim_of(const at::Tensor& tensor) {
  for (const Level level : {Level::kEveryOperator, Level::kOperators}) {
    for (const auto& interceptor : interceptors_of(tensor, level)) {
      if (auto words = words_of(interceptor); !words.empty()) return words;
    }
  }
  if (!tensor.is_leaf()) return "";
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
  if (!accumulator) return "";
  for (const auto& hook : accumulator->post_hooks()) {
    if (auto words = words_of(hook); !words.empty()) return words;
  }
  return "";
}

}  // namespace hasten::interception
