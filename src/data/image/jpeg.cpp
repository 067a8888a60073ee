// JPEG through libjpeg-turbo; see decoders.h. The settings are the library's own (exact DCT, smooth
// upsampling of chroma), which are Pillow's too, so that the pixels are the same.
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <vector>

#include <jpeglib.h>

#include <jerror.h>  // after jpeglib.h, which lists the messages

#include "data/image/decoders.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

constexpr int kRowsAtOnce = 16;

/// All data that lasts across a jump. The library's callbacks find it through client_data.
struct Jpeg {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf jump;
  char words[JMSG_LENGTH_MAX] = {};
  const uint8_t* bytes = nullptr;
  unsigned long size = 0;
  uint8_t* pixels = nullptr;  // where row 0 goes
  int64_t stride = 0;
  uint8_t* cmyk = nullptr;  // a row of four channels, where the image has them
  uint8_t* rows[kRowsAtOnce] = {};

  ~Jpeg() { jpeg_destroy_decompress(&info); }
};

Jpeg& self(j_common_ptr info) {
  return *static_cast<Jpeg*>(info->client_data);
}

[[noreturn]] void on_error(j_common_ptr info) {
  Jpeg& jpeg = self(info);
  info->err->format_message(info, jpeg.words);
  std::longjmp(jpeg.jump, 1);
}

/// A mere warning of the library is an error here if pixels are lost.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      on_error(info);
    default:
      return;
  }
}

void no_output(j_common_ptr) {}

/// Pillow's conversion of the inverted CMYK that Adobe writes: each of 255 - value, then (255 - K) less its
/// share.
void to_rgb(const uint8_t* cmyk, uint8_t* rgb, int64_t width) {
  for (int64_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    for (int channel = 0; channel < 3; ++channel) {
      const int product = (255 - cmyk[channel]) * cmyk[3] + 128;
      const int share = ((product >> 8) + product) >> 8;
      rgb[channel] = static_cast<uint8_t>(cmyk[3] > share ? cmyk[3] - share : 0);
    }
  }
}

// Functions with setjmp: no object with a destructor, and no data in local variables.

bool read_header(Jpeg& jpeg) noexcept {
  jpeg.info.err = jpeg_std_error(&jpeg.errors);
  jpeg.info.client_data = &jpeg;
  jpeg.errors.error_exit = on_error;
  jpeg.errors.emit_message = on_message;
  jpeg.errors.output_message = no_output;
  if (setjmp(jpeg.jump)) return false;
  jpeg_create_decompress(&jpeg.info);
  jpeg.info.client_data = &jpeg;
  jpeg_mem_src(&jpeg.info, jpeg.bytes, jpeg.size);
  jpeg_read_header(&jpeg.info, TRUE);
  jpeg.info.out_color_space = jpeg.info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  return true;
}

bool read_rows(Jpeg& jpeg) noexcept {
  if (setjmp(jpeg.jump)) return false;
  jpeg_start_decompress(&jpeg.info);
  while (jpeg.info.output_scanline < jpeg.info.output_height) {
    uint8_t* next = jpeg.pixels + jpeg.info.output_scanline * jpeg.stride;
    if (jpeg.cmyk) {
      jpeg_read_scanlines(&jpeg.info, &jpeg.cmyk, 1);
      to_rgb(jpeg.cmyk, next, jpeg.info.output_width);
      continue;
    }
    const unsigned left = jpeg.info.output_height - jpeg.info.output_scanline;
    const unsigned count = left < kRowsAtOnce ? left : kRowsAtOnce;
    for (unsigned i = 0; i < count; ++i) jpeg.rows[i] = next + i * jpeg.stride;
    jpeg_read_scanlines(&jpeg.info, jpeg.rows, count);
  }
  return true;
}

[[noreturn]] void throw_damaged(const std::string& path, const Jpeg& jpeg) {
  throw DataError(Origin{"data"}, path, "'", path, "' is a damaged or truncated JPEG: ", jpeg.words,
                  ". Get the file again, or take it away.");
}

}  // namespace

void detail::decode_jpeg(std::string_view bytes, const std::string& path, Image& image) {
  Jpeg jpeg;
  jpeg.bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  jpeg.size = bytes.size();
  if (!read_header(jpeg)) throw_damaged(path, jpeg);
  check_image_size(path, jpeg.info.image_height, jpeg.info.image_width);
  image.reset(jpeg.info.image_height, jpeg.info.image_width);
  std::vector<uint8_t> cmyk;
  if (jpeg.info.out_color_space == JCS_CMYK) {
    cmyk.resize(static_cast<size_t>(image.width()) * 4);
    jpeg.cmyk = cmyk.data();
  }
  jpeg.pixels = image.row(0);
  jpeg.stride = image.width() * 3;
  if (!read_rows(jpeg)) throw_damaged(path, jpeg);
}

}  // namespace hasten::data
