// The way of a batch to an accelerator: into pinned memory on the thread that fetched it, from there on a
// stream of its own, beside what the loop computes. The loop's stream waits for the copy, the host does not.
//
// Written with c10's guards, streams and events, which stand for those of any accelerator, so that it
// compiles against every libtorch. Which batch is sent when is epoch_pipeline.h's: one ahead of the loop.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

#include "hasten/comm/nested/nested.h"

namespace hasten::data {

/// How a batch gets to the device. All unset: it stays where it is.
template <class Batch>
struct DeviceTransfer {
  /// On the thread that fetched the batch, at once.
  std::function<Batch(const Batch&)> pin = {};
  /// Starts its way. On the loop's thread, as receive.
  std::function<Batch(const Batch&)> send = {};
  /// Before the loop gets it. Where it is set, a batch is sent while the loop has the one before.
  std::function<void(const Batch&)> receive = {};
};

namespace detail {

class Staging {
 public:
  /// Whether such a device has pinned memory and streams to copy on.
  static bool serves(c10::Device device);

  /// Collective: no. Blocks: no. Throws: what c10 throws for a device that is not there.
  explicit Staging(c10::Device device);

  /// A copy in pinned memory; tensors that do not lie in plain CPU memory as they are. From any thread.
  at::Tensor pin(const at::Tensor& tensor) const;
  /// The tensor on the device as soon as received. Its memory may be given back at once.
  at::Tensor send(const at::Tensor& tensor);
  /// What was sent before is there for what the loop's stream does from now on.
  void receive(const at::Tensor& tensor);

 private:
  c10::Device device_;
  c10::Stream stream_;
  c10::Event sent_;
};

}  // namespace detail

/// Collective: no. Blocks: no. Throws: nothing; its functions throw what libtorch throws for the device.
template <class Batch>
DeviceTransfer<Batch> placement(std::shared_ptr<detail::Staging> staging) {
  return {.pin =
              [staging](const Batch& batch) {
                return comm::map_tensors(batch, [&](const at::Tensor& t) { return staging->pin(t); });
              },
          .send =
              [staging](const Batch& batch) {
                return comm::map_tensors(batch, [&](const at::Tensor& t) { return staging->send(t); });
              },
          .receive =
              [staging](const Batch& batch) {
                for (const at::Tensor& tensor : comm::tensors_of(batch)) staging->receive(tensor);
              }};
}

}  // namespace hasten::data
