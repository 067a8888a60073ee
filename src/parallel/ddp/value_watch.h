// Whether the values of tensors have changed since they were noted, without reading all of them.
//
// Version counters do not serve on a CPU. SGD and other optimizers of libtorch step through data(), which leaves the
// tensor's counter alone. A clamp that finds nothing to cut raises it. So the first bytes of every tensor are stored: a
// step changes them wherever the first elements have a gradient. On other devices reading waits for the device, and
// counters have to do. The caller decides the meaning of a change (ddp.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hasten::parallel {

class ValueWatch {
 public:
  /// Records the values of `tensors`, in the place of the record before.
  void note(const std::vector<at::Tensor>& tensors);
  void forget() noexcept { noted_.clear(); }
  bool empty() const noexcept { return noted_.empty(); }
  /// Returns the indices of the same tensors that have changed.
  std::vector<size_t> changed(const std::vector<at::Tensor>& tensors) const;

 private:
  struct Noted {
    std::array<std::byte, 64> first = {};
    int64_t version = 0;
    bool operator==(const Noted&) const = default;
  };
  static Noted look(const at::Tensor& tensor);
  std::vector<Noted> noted_;
};

}  // namespace hasten::parallel
