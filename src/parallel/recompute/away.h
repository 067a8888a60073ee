// AwayTensors: inputs of regions that wait on the host for backward, and come back to their device ahead of their use.
//
// A tensor is copied to pinned memory on a stream of its own while forward goes on, and given up. Backward takes the
// tensors in the reverse of their order, so the one before is on its way while one is in use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hasten::parallel {

class AwayTensors;

/// A storage that is on the host.
class AwayTensor {
 public:
  AwayTensor(std::shared_ptr<AwayTensors> owner, size_t place) : owner_(std::move(owner)), place_(place) {}
  ~AwayTensor();
  AwayTensor(const AwayTensor&) = delete;
  AwayTensor& operator=(const AwayTensor&) = delete;
  /// Returns a tensor over the storage on its device, flat, of `dtype`.
  at::Tensor flat(at::ScalarType dtype);

 private:
  std::shared_ptr<AwayTensors> owner_;
  size_t place_;
};

class AwayTensors : public std::enable_shared_from_this<AwayTensors> {
 public:
  /// Sends the tensor's storage away if it is a result of the model on an accelerator. Returns null for another one.
  /// A storage that is away already is the same object.
  std::shared_ptr<AwayTensor> send(const at::Tensor& tensor);
  /// Returns the object of a storage that is away; null for another one.
  std::shared_ptr<AwayTensor> find(const at::Tensor& tensor);

 private:
  friend class AwayTensor;
  struct Place {
    at::Tensor host = {}, device = {};
    c10::Device where = c10::Device(at::kCPU);
    std::optional<c10::Event> came = {};
    bool is_over = false;
  };
  void bring(Place& place);
  at::Tensor take(size_t index);
  void forget(size_t index);
  c10::Stream stream_of(c10::Device device);

  struct Known {
    // The weak reference keeps the address from being used again.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::weak_ptr<AwayTensor> away;
  };
  std::mutex mutex_;
  std::vector<Place> places_;
  std::unordered_map<const c10::StorageImpl*, Known> known_;
  std::unordered_map<c10::Device, c10::Stream> streams_;
};

/// Bytes that were sent to the host since the process started.
int64_t bytes_sent_away() noexcept;

}  // namespace hasten::parallel
