// PeerCopies: copies between accelerators, which pass the host where the way between two of them is broken.
//
// Some boards and drivers claim access between peers that gives wrong bytes. So the first copy between two devices is
// tried with a pattern, there and back. After Accelerate's check_cuda_p2p_ib_support, which goes by the boards' names.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace hasten::offload::detail {

class PeerCopies {
 public:
  using Copy = std::function<at::Tensor(const at::Tensor&, c10::Device)>;
  /// `copy` makes direct copies; tests give one that is broken.
  explicit PeerCopies(Copy copy = {});

  /// Returns the tensor on the device, as autograd records it.
  /// Blocks: at the first copy between two accelerators, and where it goes through the host.
  at::Tensor moved(const at::Tensor& tensor, c10::Device device);

 private:
  bool is_sound(c10::Device from, c10::Device to);
  Copy copy_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::DeviceIndex>, bool> sound_;
};

/// Those of this process.
PeerCopies& peer_copies();

}  // namespace hasten::offload::detail
