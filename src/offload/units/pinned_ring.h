// PinnedRing: pieces of pinned memory through which bytes of the host go to a device.
//
// A copy from pageable memory makes the host wait, and takes a fraction of the bus. Threads of the ring fill pieces, by
// memcpy or from a file, and each full piece is copied on a stream of its own. So the pinned memory stays small, and
// the next piece is filled while one is on its way. Units that are streamed and checkpoints that are loaded use it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace hasten::offload {

struct PinnedRingOptions {
  /// Bytes of a piece; each thread has two.
  int64_t piece_bytes = int64_t{4} << 20;
  /// 0: as many as libtorch computes with, 2 to 8. One thread reads mapped files at a tenth of the bus's speed.
  int num_threads = 0;
};

class PinnedRing {
 public:
  /// Writes `count` bytes from byte `begin` on to `to`. Called in the ring's threads, for several ranges at a time.
  /// Throws: any exception; it reaches Sent::wait().
  using Fill = std::function<void(char* to, int64_t begin, int64_t count)>;
  struct Part {
    Fill fill = {};
    /// Bytes of the device, one after the other.
    at::Tensor to = {};
  };

  /// What was sent together.
  class Sent {
   public:
    /// Returns once the host's bytes are read and all copies are in the stream.
    /// Blocks: until then. Throws: the first exception of a Fill.
    void wait();
    /// As wait(); work of the stream after this call comes after the copies.
    void block(const c10::Stream& stream);

   private:
    friend class PinnedRing;
    struct State;
    std::shared_ptr<State> state_;
  };

  /// The memory and the threads are made at the first use. Throws: UsageError for options out of range.
  explicit PinnedRing(c10::Device device, PinnedRingOptions options = {});
  /// Waits for what is under way.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// Starts to send. The copies come after `after`.
  Sent send(std::vector<Part> parts, std::vector<c10::Event> after = {});
  const c10::Stream& stream() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns a Fill that copies from a dense tensor on the CPU, in the order of its memory. It keeps the tensor.
PinnedRing::Fill fill_from(const at::Tensor& tensor);

/// Returns copies of tensors on the CPU, of their dtypes and strides, on `device`. The calling thread's stream waits
/// for them. Pinned memory is copied directly; a few bytes, and what is not dense, are copied as by Tensor::to.
/// Blocks: until the host's memory is read. Throws: c10::OutOfMemoryError.
std::vector<at::Tensor> to_device(const std::vector<at::Tensor>& tensors, c10::Device device);

}  // namespace hasten::offload
