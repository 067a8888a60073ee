// What feeds of units to a device share: the mode of their own operators, and pooled memory that streams still read.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>

#include <vector>

#include "hasten/interception/interceptor.h"

namespace hasten::offload {

/// While it exists, operators of this thread are libtorch's own: outside of inference mode, without gradients, past
/// interceptors. Reads of units may come from any mode of the program's.
struct PlainMode {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
  interception::PassScope pass;
};

/// Memory of a pool, and what must have happened before it is written to.
struct DeviceBuffer {
  at::Tensor bytes = {};
  std::vector<c10::Event> after = {};

  /// The streams may still read it. Takes them out of the list.
  void note_readers(std::vector<c10::Stream>& readers) {
    for (const auto& reader : readers) {
      c10::Event event(reader.device_type());
      event.record(reader);
      after.push_back(std::move(event));
    }
    readers.clear();
  }
  /// The stream waits for those that read it.
  void block(const c10::Stream& stream) {
    for (auto& event : after) event.block(stream);
    after.clear();
  }
};

/// The storage shows this memory of the device, or none (null). The memory is not the storage's.
inline void point_storage(const c10::Storage& storage, void* memory, c10::Device device) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(memory, device));
}

}  // namespace hasten::offload
