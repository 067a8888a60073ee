// Mapping files; see mapped_file.h.
#include "data/dataset/mapped_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "hasten/core/error.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::data {

namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path, std::string_view expected) {
  const auto fail = [&](std::string_view what, const char* why) {
    throw DataError(Origin{"data"}, path, "cannot ", what, " '", path, "': ", why, "; expected ", expected,
                    ". Check the path.");
  };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) fail("open", std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.number, &status) != 0) fail("open", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("map", S_ISDIR(status.st_mode) ? "it is a folder" : "it is no plain file");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  // Private and writable: a write to a tensor copies the page. Not reserved: data may be larger than memory.
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.number, 0);
  if (data == MAP_FAILED) fail("map", std::strerror(errno));
  data_ = static_cast<char*>(data);
  const bool is_page = !bytes().starts_with("version ");
  if (!is_page || expected != "a text file") files::refuse_stand_in(path, bytes());
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

at::Tensor tensor_over(const std::shared_ptr<MappedFile>& file, size_t offset, at::IntArrayRef shape,
                       at::IntArrayRef strides, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const size_t item = c10::elementSize(dtype);
  size_t bytes = item;
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  if (bytes == 0) return at::empty_strided(shape, strides, options);
  char* from = const_cast<char*>(file->bytes().data()) + offset;
  if (reinterpret_cast<uintptr_t>(from) % item == 0) {
    return at::from_blob(
        from, shape, strides, [file](void*) {}, options);
  }
  const at::Tensor copy = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  std::memcpy(copy.mutable_data_ptr(), from, bytes);
  return at::from_blob(
      copy.mutable_data_ptr(), shape, strides, [copy](void*) {}, options);
}

}  // namespace hasten::data
