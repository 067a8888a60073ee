// Tensors among logged values: `accelerator.log({{"loss", loss}}, step)`.
//
// A tensor of a single element on the CPU is read at once. On a GPU it is copied to pinned memory on the current
// stream. It is read when an event reports that the copy is done, so logging it does not wait for the GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

template <>
struct ValueOf<at::Tensor> {
  /// A tensor of another number of elements becomes an invalid value, which log refuses with its key and shape.
  /// Throws: c10::Error if the copy cannot be started.
  static Value make(const at::Tensor& tensor);
};

}  // namespace hasten::tracking
