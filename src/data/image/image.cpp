// The memory that images are decoded into; see image.h.
#include "hasten/data/image/image.h"

#include "data/origin.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

constexpr size_t kKeptBytes = 16 << 20;

}  // namespace

void Image::reset(int64_t height, int64_t width) {
  const auto bytes = static_cast<size_t>(height) * static_cast<size_t>(width) * 3;
  // A huge image must not hold its memory for ever.
  if (bytes > capacity_ || capacity_ > 4 * bytes + kKeptBytes) {
    pixels_.reset();
    capacity_ = 0;
    pixels_.reset(new uint8_t[bytes]);  // not zeroed: it is written in full
    capacity_ = bytes;
  }
  height_ = height;
  width_ = width;
  stride_ = width * 3;
  offset_ = 0;
}

void Image::crop(int64_t top, int64_t left, int64_t height, int64_t width) {
  if (top < 0 || left < 0 || height < 1 || width < 1 || top > height_ - height || left > width_ - width) {
    throw UsageError(kOrigin, "a crop of ", height, " x ", width, " (height x width) at ", top, ", ", left,
                     " of an image of ", height_, " x ", width_, ", expected one inside. Resize the image first.");
  }
  offset_ += top * stride_ + left * 3;
  height_ = height;
  width_ = width;
}

}  // namespace hasten::data
