// See move_module.h.
#include "hasten/offload/units/move_module.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <vector>

#include "hasten/interception/interceptor.h"
#include "offload/units/pinned_ring.h"

namespace hasten::offload {

void move_module(torch::nn::Module& module, c10::Device device) {
  if (!device.is_cpu()) {
    std::set<const c10::TensorImpl*> seen;
    std::vector<at::Tensor> tensors, values;
    const auto note = [&](const std::vector<at::Tensor>& found) {
      for (const at::Tensor& tensor : found) {
        const bool goes = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided;
        // libtorch's copy takes an interceptor along, as that of SyncBatchNorm.
        if (!goes || interception::find_interceptor<interception::Interceptor>(tensor)) continue;
        if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
        tensors.push_back(tensor);
        values.push_back(tensor.detach());
      }
    };
    note(module.parameters());
    note(module.buffers());
    const std::vector<at::Tensor> there = to_device(values, device);
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].set_data(there[i]);
  }
  module.to(device);
}

}  // namespace hasten::offload
