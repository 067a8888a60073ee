// Tensors among logged images: `accelerator.log_images({{"input", batch.data}}, step)`.
//
// Shapes are [C,H,W], [H,W] or [N,C,H,W] with 1, 3 or 4 channels. Values are floating point from 0 to 1, uint8 from 0
// to 255, or bool. Values are multiplied by 255 (uint8 as it is) and cut, as torch.utils.tensorboard does.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

template <>
struct ImagesOf<at::Tensor> {
  /// Copies the pixels; on a GPU without waiting for it.
  /// Blocks: for the copy on the CPU. Throws: UsageError for another shape.
  static std::shared_ptr<PendingImages> make(const at::Tensor& tensor);
};

template <>
struct ImagesOf<std::vector<at::Tensor>> {
  /// Each one image or several.
  static std::shared_ptr<PendingImages> make(const std::vector<at::Tensor>& tensors);
};

/// Images whose channels come last: [H,W,C] or [N,H,W,C]. Blocks: as make. Throws: UsageError.
Images channels_last_images(const at::Tensor& tensor);

}  // namespace hasten::tracking
