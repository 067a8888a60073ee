// The way of a batch to an accelerator. The thread that fetched it puts it into pinned memory. From there it is copied
// on a stream of its own, beside the loop's computation. The loop's stream waits for the copy, the host does not.
//
// Written with c10's guards, streams and events, which represent those of any accelerator, so that it compiles against
// every libtorch. Which batch is sent when is epoch_pipeline.h's: one ahead of the loop.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"

namespace hasten::data::detail {

class Staging {
 public:
  /// Returns true if such a device has pinned memory and streams to copy on.
  static bool serves(c10::Device device);

  /// Throws: what c10 throws for a device that is not there.
  explicit Staging(c10::Device device);

  /// Returns a copy in pinned memory. Tensors that do not lie in plain CPU memory stay as they are. From any thread.
  at::Tensor pin(const at::Tensor& tensor) const;
  /// Returns the tensor on the device as soon as received. Its memory may be given back at once.
  at::Tensor send(const at::Tensor& tensor);
  /// Makes earlier copies available to later work of the loop's stream.
  void receive(const at::Tensor& tensor);

 private:
  c10::Device device_;
  c10::Stream stream_;
  c10::Event sent_;
};

/// By way of `staging`. Throws: nothing; its functions throw what libtorch throws
/// for the device.
TransferStage staged(std::shared_ptr<Staging> staging, const BatchOperations& operations);

}  // namespace hasten::data::detail
