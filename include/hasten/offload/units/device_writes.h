// DeviceWrites: values that are read on the host, written into tensors of devices through rings of pinned pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace hasten::offload {

class DeviceWrites {
 public:
  DeviceWrites();
  /// Waits for what is under way.
  ~DeviceWrites();
  DeviceWrites(const DeviceWrites&) = delete;
  DeviceWrites& operator=(const DeviceWrites&) = delete;

  /// Starts to write `values` (CPU, contiguous) into `target`, and keeps `values` as long as needed. Threads may call
  /// it at a time. Returns false, and does nothing, if a plain copy_ is the way. It is for targets on the CPU, of other
  /// strides or dtypes, of few bytes, and with interceptors.
  /// Blocks: while 512 MB are under way.
  bool put(const at::Tensor& target, const at::Tensor& values);
  /// The calling thread's streams wait for all that was put.
  /// Blocks: until the host's memory is read.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::offload
