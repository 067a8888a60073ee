// See png.h.
#include "tracking/journal/png.h"

#include <png.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

png_uint_32 png_format(int channels) {
  return channels == 1 ? PNG_FORMAT_GRAY : channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
}

}  // namespace

std::string encode_png(const Image& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = png_format(image.channels);
  header.flags = PNG_IMAGE_FLAG_FAST;
  std::string png(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = png.size();
  if (png_image_write_to_memory(&header, png.data(), &size, 0, image.pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error(text("an image cannot be written as PNG: ", header.message));
  }
  png.resize(size);
  return png;
}

Image decode_png(std::string_view png, const std::string& path) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  const auto fail = [&] {
    const std::string reason = header.message;
    png_image_free(&header);
    throw DataError(Origin{"tracking"}, path, path, " is no PNG file that can be read: ", reason, ". Remove it.");
  };
  if (png_image_begin_read_from_memory(&header, png.data(), png.size()) == 0) fail();
  if (static_cast<uint64_t>(header.width) * header.height > 1U << 28) {
    std::strcpy(header.message, "it is larger than 2^28 pixels");
    fail();
  }
  Image image{static_cast<int>(header.width), static_cast<int>(header.height), 3};
  if ((header.format & PNG_FORMAT_FLAG_COLOR) == 0) image.channels = 1;
  if ((header.format & PNG_FORMAT_FLAG_ALPHA) != 0) image.channels = 4;
  header.format = png_format(image.channels);
  image.pixels.resize(PNG_IMAGE_SIZE(header));
  if (png_image_finish_read(&header, nullptr, image.pixels.data(), 0, nullptr) == 0) fail();
  return image;
}

Image image_grid(const std::vector<Image>& images, int most_columns) {
  if (images.size() == 1) return images.front();
  const int width = images.front().width, height = images.front().height;
  const int columns = std::min<int>(most_columns, static_cast<int>(images.size()));
  const int rows = (static_cast<int>(images.size()) + columns - 1) / columns;
  const int channels = std::max(3, images.front().channels);
  Image grid{width * columns, height * rows, channels, {}};
  grid.pixels.resize(static_cast<size_t>(grid.width) * grid.height * channels);
  for (size_t i = 0; i < images.size(); ++i) {
    const Image& image = images[i];
    const int left = static_cast<int>(i) % columns * width, top = static_cast<int>(i) / columns * height;
    for (int y = 0; y < std::min(height, image.height); ++y) {
      for (int x = 0; x < std::min(width, image.width); ++x) {
        const uint8_t* from = &image.pixels[(static_cast<size_t>(y) * image.width + x) * image.channels];
        uint8_t* to = &grid.pixels[(static_cast<size_t>(top + y) * grid.width + left + x) * channels];
        for (int c = 0; c < channels; ++c) {
          to[c] = c < image.channels && image.channels != 1 ? from[c] : image.channels == 1 && c < 3 ? from[0] : 255;
        }
      }
    }
  }
  return grid;
}

}  // namespace hasten::tracking
