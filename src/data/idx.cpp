// Reading of IDX files through zlib, which reads plain files as they are; see idx.h.
//
// The header: two zero bytes, the type of the values, the number of dimensions, then each dimension's size in
// four bytes, most significant first.
#include "hasten/data/idx.h"

#include <torch/types.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::data {
namespace {

constexpr unsigned char kUnsignedByte = 0x08;

using File = std::unique_ptr<std::remove_pointer_t<gzFile>, decltype(&gzclose)>;

template <class... Parts>
[[noreturn]] void refuse(const std::string& path, const Parts&... parts) {
  throw DataError({"data"}, path, "'", path, "' ", parts..., ". Fetch the file again or name another.");
}

// Reads up to `size` bytes, fewer at the end of the file.
size_t read(const File& file, const std::string& path, unsigned char* target, size_t size) {
  size_t done = 0;
  while (done < size) {
    const auto part = static_cast<unsigned>(std::min<size_t>(size - done, 1 << 30));
    const int got = gzread(file.get(), target + done, part);
    int error = Z_OK;
    const char* words = gzerror(file.get(), &error);
    if (got < 0 || error != Z_OK) refuse(path, "cannot be unpacked (", words, ")");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

std::vector<int64_t> read_header(const File& file, const std::string& path) {
  std::array<unsigned char, 4> magic{};
  const size_t size = read(file, path, magic.data(), magic.size());
  if (size < magic.size() || magic[0] != 0 || magic[1] != 0) refuse(path, "is no IDX file");
  if (magic[2] != kUnsignedByte) {
    refuse(path, "holds values of IDX type ", int{magic[2]}, ", not unsigned bytes (", int{kUnsignedByte},
           ")");
  }
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < magic[3]; ++dim) {
    std::array<unsigned char, 4> bytes{};
    if (read(file, path, bytes.data(), bytes.size()) < bytes.size()) refuse(path, "ends within its header");
    sizes.push_back(int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3]);
  }
  return sizes;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const File file(gzopen(path.c_str(), "rb"), &gzclose);
  if (!file) refuse(path, "cannot be opened");
  const std::vector<int64_t> sizes = read_header(file, path);
  int64_t expected = 1;
  for (const int64_t size : sizes) {
    if (size != 0 && expected > std::numeric_limits<int64_t>::max() / size)
      refuse(path, "has an impossible shape");
    expected *= size;
  }
  // Read in pieces, so that a broken header cannot ask for more memory than the file fills.
  std::vector<unsigned char> values;
  for (size_t done = 0; done < static_cast<size_t>(expected); done = values.size()) {
    values.resize(std::min<size_t>(static_cast<size_t>(expected), done + (64 << 20)));
    values.resize(done + read(file, path, values.data() + done, values.size() - done));
    if (values.size() == done) {
      refuse(path, "is truncated: its shape [", join(sizes), "] needs ", expected, " values, it holds ",
             done);
    }
  }
  unsigned char more = 0;
  if (read(file, path, &more, 1) != 0) refuse(path, "holds more than its shape [", join(sizes), "] says");
  return torch::from_blob(values.data(), sizes, torch::kUInt8).clone();
}

}  // namespace hasten::data
