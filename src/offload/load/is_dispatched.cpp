// See is_dispatched.h.
#include "hasten/offload/load/is_dispatched.h"

#include <algorithm>

#include "hasten/interception/interceptor.h"
#include "hasten/offload/map/tree_of.h"
#include "offload/load/dispatch.h"

namespace hasten::offload {

bool is_dispatched(const torch::nn::Module& module) {
  const auto items = named_tensors(module);
  return std::any_of(items.begin(), items.end(), [](const NamedTensorRef& item) {
    const auto mark = interception::find_interceptor<detail::OffloadMark>(item.tensor);
    return (mark && !mark->words().empty()) || interception::find_interceptor<detail::DeviceRun>(item.tensor);
  });
}

}  // namespace hasten::offload
