// PNG files of images, and the grid that TensorBoard shows several images as; over libpng.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

/// Compresses for speed. Throws: std::runtime_error.
std::string encode_png(const Image& image);
/// Throws: DataError that names `path` for bytes that are no PNG or are larger than 2^28 pixels.
Image decode_png(std::string_view png, const std::string& path);

/// Arranges N images in rows of up to `columns` (8, as torch.utils.tensorboard has it) without gaps, each the size of
/// the first. Grey becomes RGB. A single image stays as it is.
Image image_grid(const std::vector<Image>& images, int columns = 8);

}  // namespace hasten::tracking
