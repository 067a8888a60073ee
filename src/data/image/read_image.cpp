// Reading image files; see image.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iomanip>

#include "data/image/decoders.h"
#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/data/image/image.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::data {

namespace {

constexpr uint64_t kMaxPixels = 178'956'970;

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

/// The file's bytes in `buffer`, which keeps its memory from file to file.
void read_file(const std::string& path, std::string& buffer) {
  const auto fail = [&](const char* why) {
    throw DataError(kOrigin, path, "cannot read '", path, "': ", why, "; expected a PNG or JPEG. Check the path.");
  };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat status = {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("it is no plain file");
  buffer.resize(static_cast<size_t>(status.st_size));
  size_t have = 0;
  while (have < buffer.size()) {
    const ssize_t got = ::read(file.number, buffer.data() + have, buffer.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  buffer.resize(have);
}

}  // namespace

void detail::check_image_size(const std::string& path, uint64_t height, uint64_t width) {
  if (height > 0 && width > 0 && height <= kMaxPixels / width) return;
  throw DataError(kOrigin, path, "'", path, "' states ", height, " x ", width, " pixels, expected 1 to ", kMaxPixels,
                  ". It is damaged or no image for training.");
}

void decode_image(std::string_view bytes, const std::string& path, Image& image) {
  if (bytes.starts_with("\xff\xd8\xff")) return detail::decode_jpeg(bytes, path, image);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return detail::decode_png(bytes, path, image);
  files::refuse_stand_in(path, bytes);
  std::string begin;
  for (const char byte : bytes.substr(0, 4)) {
    begin += text(std::hex, std::setw(2), std::setfill('0'), static_cast<int>(static_cast<unsigned char>(byte)));
  }
  throw DataError(kOrigin, path, "'", path,
                  "' is neither PNG nor JPEG: ", bytes.empty() ? "it is empty" : "it begins with 0x" + begin,
                  ". Convert it, or take it away.");
}

void read_image(const std::string& path, Image& image) {
  thread_local std::string buffer;  // one per worker: files of a folder are of similar size
  read_file(path, buffer);
  decode_image(buffer, path, image);
}

Image read_image(const std::string& path) {
  Image image;
  read_image(path, image);
  return image;
}

}  // namespace hasten::data
