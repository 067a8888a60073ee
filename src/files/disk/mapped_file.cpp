// mmap of a whole file; see mapped_file.h.
#include "hasten/files/disk/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hasten::files {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, const MapOptions& options) {
  return std::shared_ptr<const MappedFile>(new MappedFile(path, options));
}

MappedFile::MappedFile(const std::string& path, const MapOptions& options) : path_(path) {
  const auto fail = [&](const char* what, const char* why) {
    throw DataError(options.origin, path, "cannot ", what, " '", path, "': ", why, "; expected ", options.expected,
                    ". Check the path.");
  };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) fail("open", std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.number, &status) != 0) fail("open", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("map", S_ISDIR(status.st_mode) ? "it is a folder" : "it is no plain file");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  // A private write copies the page. Not reserved: data may be larger than memory.
  const int protection = options.private_writes ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = options.private_writes ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  void* const data = ::mmap(nullptr, size_, protection, flags, file.number, 0);
  if (data == MAP_FAILED) fail("map", std::strerror(errno));
  data_ = static_cast<char*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace hasten::files
