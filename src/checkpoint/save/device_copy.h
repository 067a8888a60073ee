// DeviceCopy: copies of device tensors into pinned host memory in a stream of their own, beside the compute stream.
//
// The copies begin after the work that the compute stream has been given so far. Before the tensors are written again,
// hold() makes the compute stream wait. A step and a load call it, and where libtorch reports writes to a storage, the
// first write does. The host waits only in finish(), which the writer calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hasten/compat/storage_watch.h"

namespace hasten::checkpoint {

class DeviceCopy {
 public:
  /// For tensors of one device, which is no CPU. Throws: c10::Error if it has no streams.
  explicit DeviceCopy(c10::Device device);
  /// True for devices with streams and memory of their own.
  static bool serves(c10::Device device);

  /// Starts the copy of `tensor` to `to`, contiguous, pinned memory.
  void add(char* to, const at::Tensor& tensor);
  /// Marks the end of the copies.
  void close();
  /// Lets the thread's stream wait for the copies added so far, although more will follow: for tensors that any forward
  /// writes to.
  void hold_first();
  /// Lets the thread's stream wait for the copies.
  void hold();
  /// Blocks: until the copies are done. Throws: c10::Error for a fault of the device.
  void finish();

 private:
  c10::Device device_;
  c10::Stream stream_;
  c10::Event ready_, first_, copied_;
  std::mutex mutex_;
  std::vector<c10::Stream> held_ = {};
};

/// Holds a copy before the first write to one of its tensors.
class WriteHold : public compat::StorageListener {
 public:
  explicit WriteHold(std::shared_ptr<DeviceCopy> copy) : copy_(std::move(copy)) {}
  void before_write(c10::StorageImpl&) override { copy_->hold(); }

 private:
  std::shared_ptr<DeviceCopy> copy_;
};

}  // namespace hasten::checkpoint
