// PNG through libpng; see decoders.h.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "data/image/decoders.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

/// All data that lasts across a jump. The library's callbacks find it through their pointers.
struct Png {
  png_structp read = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump;
  char words[256] = {};
  const char* bytes = nullptr;
  size_t left = 0;
  png_bytep* rows = nullptr;

  ~Png() { png_destroy_read_struct(&read, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp read, png_const_charp words) {
  Png& png = *static_cast<Png*>(png_get_error_ptr(read));
  std::snprintf(png.words, sizeof png.words, "%s", words);
  std::longjmp(png.jump, 1);
}

void on_warning(png_structp, png_const_charp) {}

void give_bytes(png_structp read, png_bytep to, size_t count) {
  Png& png = *static_cast<Png*>(png_get_io_ptr(read));
  if (count > png.left) png_error(read, "it ends too early");
  std::memcpy(to, png.bytes, count);
  png.bytes += count;
  png.left -= count;
}

// Functions with setjmp: no object with a destructor, and no data in local variables.

/// Everything becomes 8-bit RGB: palettes looked up, gray spread, the upper 8 of 16 bits taken, alpha left out.
bool read_header(Png& png) noexcept {
  if (setjmp(png.jump)) return false;
  png.read = png_create_read_struct(PNG_LIBPNG_VER_STRING, &png, on_error, on_warning);
  png.info = png.read ? png_create_info_struct(png.read) : nullptr;
  if (!png.info) {
    std::snprintf(png.words, sizeof png.words, "libpng is of another version, or out of memory");
    return false;
  }
  png_set_read_fn(png.read, &png, give_bytes);
  png_read_info(png.read, png.info);
  png_set_palette_to_rgb(png.read);
  png_set_expand_gray_1_2_4_to_8(png.read);
  png_set_strip_16(png.read);
  png_set_strip_alpha(png.read);
  png_set_gray_to_rgb(png.read);
  png_set_interlace_handling(png.read);
  png_read_update_info(png.read, png.info);
  return true;
}

bool read_rows(Png& png) noexcept {
  if (setjmp(png.jump)) return false;
  png_read_image(png.read, png.rows);
  png_read_end(png.read, nullptr);
  return true;
}

[[noreturn]] void throw_damaged(const std::string& path, const Png& png) {
  throw DataError(Origin{"data"}, path, "'", path, "' is a damaged or truncated PNG: ", png.words,
                  ". Get the file again, or take it away.");
}

}  // namespace

void detail::decode_png(std::string_view bytes, const std::string& path, Image& image) {
  Png png;
  png.bytes = bytes.data();
  png.left = bytes.size();
  if (!read_header(png)) throw_damaged(path, png);
  const int64_t height = png_get_image_height(png.read, png.info), width = png_get_image_width(png.read, png.info);
  check_image_size(path, static_cast<uint64_t>(height), static_cast<uint64_t>(width));
  if (png_get_rowbytes(png.read, png.info) != static_cast<size_t>(width) * 3) {
    throw InternalError(Origin{"data"}, "'", path, "' became ", png_get_rowbytes(png.read, png.info),
                        " bytes a row, expected ", width * 3, ".");
  }
  image.reset(height, width);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < height; ++y) rows.push_back(image.row(y));
  png.rows = rows.data();
  if (!read_rows(png)) throw_damaged(path, png);
}

}  // namespace hasten::data
