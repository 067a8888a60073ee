// See memory_file.h.
#include "hasten/core/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Beyond the limit ftruncate would end the process by SIGXFSZ.
bool is_above_limit(int64_t num_bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && static_cast<rlim_t>(num_bytes) > limit.rlim_cur;
}

}  // namespace

Mapping::Mapping(int descriptor, int64_t num_bytes, Access access) : size_(num_bytes) {
  if (num_bytes == 0) return;
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = mmap(nullptr, static_cast<size_t>(num_bytes), protection, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) fail(text("a shared mapping of ", count_text(num_bytes, "byte"), " was refused (mmap)"));
  data_ = static_cast<std::byte*>(base);
}

Mapping::~Mapping() {
  unmap();
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Mapping::unmap() noexcept {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  data_ = nullptr;
}

MemoryFile MemoryFile::create(const std::string& label, int64_t num_bytes) {
  if (is_above_limit(num_bytes)) {
    errno = EFBIG;
    fail(text("files may not have the ", count_text(num_bytes, "byte"), " of the shared memory (ulimit -f)"));
  }
  MemoryFile file(memfd_create(label.c_str(), MFD_CLOEXEC), num_bytes);
  if (file.descriptor_ < 0) fail("no shared memory could be made (memfd_create)");
  if (ftruncate(file.descriptor_, num_bytes) != 0) {
    fail(text("the shared memory could not be given its ", count_text(num_bytes, "byte"), " (ftruncate)"));
  }
  return file;
}

MemoryFile MemoryFile::create_at(const std::string& path, int64_t num_bytes) {
  const auto refuse = [&](const char* what, int error) {
    throw DataError(Origin{"core"}, path, what, " '", path, "' with ", count_text(num_bytes, "byte"),
                    " failed: ", std::strerror(error), ". Choose a folder with so much free space.");
  };
  if (is_above_limit(num_bytes)) refuse("making", EFBIG);
  MemoryFile file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), num_bytes);
  if (file.descriptor_ < 0) refuse("opening", errno);
  if (num_bytes == 0) return file;
  // Without reserved space a full disk would end the process by SIGBUS at a page's first use.
  if (const int error = posix_fallocate(file.descriptor_, 0, num_bytes); error != 0) {
    unlink(path.c_str());
    refuse("reserving the space of", error);
  }
  return file;
}

MemoryFile MemoryFile::adopt(int descriptor, int64_t num_bytes) {
  MemoryFile file(descriptor, num_bytes);
  struct stat status {};
  if (fstat(descriptor, &status) != 0) fail("a handed-over descriptor cannot be read (fstat)");
  if (status.st_size != num_bytes) {
    throw std::runtime_error(text("the shared memory that was handed over has ", count_text(status.st_size, "byte"),
                                  "; expected ", num_bytes));
  }
  return file;
}

MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(std::exchange(other.size_, 0)) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  if (this == &other) return *this;
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Mapping MemoryFile::map(Mapping::Access access) const {
  return Mapping(descriptor_, size_, access);
}

}  // namespace hasten
