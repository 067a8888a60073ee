// Reading IDX files; see idx.h. The format begins with two zero bytes, the type of value (8 = unsigned byte) and the
// number of dimensions. Then come each dimension as a 32-bit big-endian number, and the values in row-major order.
#include "hasten/data/dataset/idx.h"

#include <ATen/ATen.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/data/dataset/rows.h"
#include "hasten/files/base/stand_in.h"
#include "hasten/files/hub/fetch_file.h"

namespace hasten::data {

namespace {

constexpr unsigned kUnsignedByte = 8;

/// Returns the whole file, unpacked if it is gzipped.
std::string read_all(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    throw DataError(kOrigin, path, "cannot open '", path, "': ", errno ? std::strerror(errno) : "out of memory",
                    "; expected an IDX file, plain or gzipped. Check the path.");
  }
  gzbuffer(file.get(), 1 << 18);
  std::string bytes;
  constexpr size_t kStep = 1 << 20;
  while (true) {
    const size_t have = bytes.size();
    bytes.resize(have + kStep);
    const int got = gzread(file.get(), bytes.data() + have, kStep);
    bytes.resize(have + static_cast<size_t>(std::max(got, 0)));
    int error = Z_OK;
    const char* words = gzerror(file.get(), &error);
    // A gzip file that ends too early is no failed read for zlib, only an error that it records (Z_BUF_ERROR).
    if (got < 0 || error != Z_OK) {
      throw DataError(kOrigin, path, "'", path,
                      "' is damaged or truncated: ", error == Z_ERRNO ? std::strerror(errno) : words, ", after ",
                      bytes.size(), " unpacked bytes. Get the file again.");
    }
    if (got == 0) return bytes;
  }
}

uint32_t big_endian(const char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Returns the shape that the header states.
std::vector<int64_t> shape_of(const std::string& path, std::string_view bytes) {
  files::refuse_stand_in(path, bytes);
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) {
    throw DataError(kOrigin, path, "'", path, "' is no IDX file: it begins with 0x",
                    bytes.size() < 4 ? text(std::hex, 0, " (", std::dec, bytes.size(), " bytes in all)")
                                     : text(std::hex, big_endian(bytes.data())),
                    ", expected 0x0000080N for N dimensions of unsigned bytes. Check the path.");
  }
  const unsigned type = static_cast<unsigned char>(bytes[2]), num_dims = static_cast<unsigned char>(bytes[3]);
  if (type != kUnsignedByte || num_dims == 0) {
    throw DataError(kOrigin, path, "'", path, "' holds IDX values of type ", type, " in ", num_dims,
                    " dimensions, expected type 8 (unsigned bytes) in 1 or more. Check the path.");
  }
  const size_t header = 4 + 4 * size_t{num_dims};
  if (bytes.size() < header) {
    throw DataError(kOrigin, path, "'", path, "' is truncated: ", bytes.size(), " bytes, its header alone takes ",
                    header, ". Get the file again.");
  }
  std::vector<int64_t> shape;
  for (unsigned dim = 0; dim < num_dims; ++dim) shape.push_back(big_endian(bytes.data() + 4 + 4 * dim));
  return shape;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const std::string bytes = read_all(path);
  const auto shape = shape_of(path, bytes);
  const size_t header = 4 + 4 * shape.size(), given = bytes.size() - header;
  double stated = 1;  // a damaged header's number may fit no integer
  for (const int64_t size : shape) stated *= static_cast<double>(size);
  if (stated != static_cast<double>(given)) {
    throw DataError(kOrigin, path, "'", path, "' states [", join(shape, " x "), "] values but holds ", given,
                    stated > static_cast<double>(given) ? ": it is truncated" : ": it is too long",
                    ". Get the file again.");
  }
  const at::Tensor values = at::empty(shape, at::kByte);
  std::memcpy(values.data_ptr<uint8_t>(), bytes.data() + header, given);
  return values;
}

torch::data::Example<> IdxData::batch(c10::ArrayRef<size_t> indices) const {
  const int64_t rows = images.size(1), columns = images.size(2), pixels = rows * columns;
  const auto count = static_cast<int64_t>(indices.size());
  torch::data::Example<> result(at::empty({count, 1, rows, columns}, at::kFloat), at::empty({count}, at::kLong));
  float* to = result.data.data_ptr<float>();
  int64_t* target = result.target.data_ptr<int64_t>();
  for (const size_t index : indices) {
    check_index(index, size(), "an IDX dataset");
    const uint8_t* from = images.const_data_ptr<uint8_t>() + static_cast<int64_t>(index) * pixels;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) to[pixel] = static_cast<float>(from[pixel]) / 255.0f;
    to += pixels;
    *target++ = labels.const_data_ptr<int64_t>()[index];
  }
  return result;
}

IdxDataset::IdxDataset(const std::string& images_path, const std::string& labels_path) {
  data_.images = read_idx(images_path);
  const at::Tensor labels = read_idx(labels_path);
  if (data_.images.dim() != 3 || labels.dim() != 1) {
    throw DataError(kOrigin, images_path, "'", images_path, "' has ", data_.images.dim(), " dimensions and '",
                    labels_path, "' ", labels.dim(), ", expected images in 3 (count, rows, columns) and labels in 1. ",
                    "Check which file is which.");
  }
  if (data_.images.size(0) != labels.size(0)) {
    throw DataError(kOrigin, labels_path, "'", images_path, "' holds ", data_.images.size(0), " images and '",
                    labels_path, "' ", labels.size(0), " labels, expected as many. Check that they belong together.");
  }
  data_.labels = labels.to(at::kLong);
}

torch::data::Example<> IdxDataset::get(size_t index) {
  const auto batch = data_.batch(index);
  return {batch.data[0], batch.target[0]};
}

std::vector<torch::data::Example<>> IdxDataset::get_batch(c10::ArrayRef<size_t> indices) {
  const auto batch = data_.batch(indices);
  const auto data = batch.data.unbind(), target = batch.target.unbind();
  std::vector<torch::data::Example<>> examples;
  examples.reserve(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) examples.emplace_back(data[i], target[i]);
  return examples;
}

std::string fetch_fashion_mnist(const std::string& folder, const std::string& source) {
  // SHA-256 of the unpacked bytes, for packers differ.
  const std::pair<const char*, const char*> files[] = {
      {"train-images-idx3-ubyte.gz", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"},
      {"train-labels-idx1-ubyte.gz", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"},
      {"t10k-images-idx3-ubyte.gz", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"},
      {"t10k-labels-idx1-ubyte.gz", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"}};
  for (const auto& [name, sha256] : files) {
    if (std::filesystem::exists(folder + "/" + name)) continue;
    const auto path = files::fetch_file(source + "/" + name, {.into = folder}).string();
    const auto found = core::sha256_hex(read_all(path));
    if (found == sha256) continue;
    std::filesystem::remove(path);
    throw DataError(kOrigin, path, "'", source, "/", name, "' is not that file of Fashion-MNIST: its unpacked bytes ",
                    "have the SHA-256 ", found, ", expected ", sha256, ". Fetch it from another place.");
  }
  return folder;
}

IdxDataset fashion_mnist(const std::string& root, bool train) {
  const auto path = [&](const char* part) {
    const std::string plain = root + "/" + (train ? "train" : "t10k") + part;
    if (std::filesystem::exists(plain + ".gz")) return plain + ".gz";
    if (std::filesystem::exists(plain)) return plain;
    throw DataError(
        kOrigin, root, "no Fashion-MNIST in '", root, "': '", plain, ".gz' is missing. ",
        "Install it (apt-get install dataset-fashion-mnist), fetch it (data::fetch_fashion_mnist), or give the ",
        "folder that holds it (--data).");
  };
  const std::string images = path("-images-idx3-ubyte");
  return IdxDataset(images, path("-labels-idx1-ubyte"));
}

}  // namespace hasten::data
