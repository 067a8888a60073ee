// The two image decoders behind image.h: jpeg.cpp (libjpeg-turbo) and png.cpp (libpng).
//
// Both libraries report errors by a function that must not return. Ours jumps (longjmp) to a function of ours that
// holds nothing with a destructor. Only there, behind the jump, an exception is thrown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hasten/data/image/image.h"

namespace hasten::data::detail {

void decode_jpeg(std::string_view bytes, const std::string& path, Image& image);
void decode_png(std::string_view bytes, const std::string& path, Image& image);

/// Refuses sizes that no honest image has.
void check_image_size(const std::string& path, uint64_t height, uint64_t width);

}  // namespace hasten::data::detail
