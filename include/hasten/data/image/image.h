// Images as pixels: reading PNG and JPEG files, and the memory they are decoded into.
//
// Every image becomes 8-bit red, green and blue, as Pillow's convert("RGB") makes it, so that a model trained in Python
// gets the same pixels. The decoders are libpng's and libjpeg-turbo's (src/data/image/png.cpp, jpeg.cpp).
// image_transform.h has the operations on pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hasten::data {

/// Red, green and blue, 8 bits each, row by row from the top. Memory is reused from image to image (reset), and a crop
/// is only a smaller window into it.
class Image {
 public:
  Image() = default;
  Image(int64_t height, int64_t width) { reset(height, width); }

  int64_t height() const noexcept { return height_; }
  int64_t width() const noexcept { return width_; }
  /// width() * 3 bytes.
  uint8_t* row(int64_t y) noexcept { return pixels_.get() + offset_ + y * stride_; }
  const uint8_t* row(int64_t y) const noexcept { return pixels_.get() + offset_ + y * stride_; }

  /// Another size; the pixels are undefined then.
  void reset(int64_t height, int64_t width);
  /// The window [top, top + height) x [left, left + width) of the present window. Copies nothing.
  /// Throws: UsageError with the values if it reaches outside.
  void crop(int64_t top, int64_t left, int64_t height, int64_t width);

 private:
  std::unique_ptr<uint8_t[]> pixels_;
  size_t capacity_ = 0;
  int64_t height_ = 0, width_ = 0, stride_ = 0, offset_ = 0;
};

/// Decodes a PNG or JPEG into `image`; the first bytes decide which. Gray, palettes, CMYK, alpha (left out) and 16 bits
/// (the upper 8) become RGB. EXIF orientation and colour profiles are left alone. `path` is what errors name.
/// Throws: DataError (path, reason) if it is another format, damaged, truncated or has more
/// than 178,956,970 pixels (Pillow's limit).
void decode_image(std::string_view bytes, const std::string& path, Image& image);

/// The same from a file.
/// Blocks: on the file. Throws: DataError if it cannot be read; as decode_image.
void read_image(const std::string& path, Image& image);
Image read_image(const std::string& path);

}  // namespace hasten::data
