// Complete reads and writes over pread and pwrite; see posix_file.h.
#include "files/base/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "files/base/origin.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::files {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;

[[noreturn]] void system_failure(const std::string& path, const char* what) {
  const int error = errno;
  throw DataError(kOrigin, path, "cannot ", what, " '", path, "': ", std::strerror(error), ".");
}

}  // namespace

PosixFile PosixFile::open_to_read(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) system_failure(path, "open");
  PosixFile file(descriptor, path);
  struct stat status;
  if (fstat(descriptor, &status) != 0) system_failure(path, "look at");
  if (!S_ISREG(status.st_mode)) {
    throw DataError(kOrigin, path, "'", path, "' is ", S_ISDIR(status.st_mode) ? "a folder" : "no regular file",
                    ", expected a file.");
  }
  return file;
}

PosixFile PosixFile::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) system_failure(path, "create");
  return {descriptor, path};
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
PosixFile::PosixFile(PosixFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

uint64_t PosixFile::size() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) system_failure(path_, "look at");
  return static_cast<uint64_t>(status.st_size);
}

void PosixFile::read_at(uint64_t offset, void* target, size_t count) const {
  char* to = static_cast<char*>(target);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, to, std::min(count, kMostAtOnce), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) system_failure(path_, "read");
    if (got == 0) {
      throw DataError(kOrigin, path_, "'", path_, "' ends at byte ", offset, ", expected ", count,
                      " bytes more: it is truncated. Get the file again.");
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<size_t>(got);
  }
}

void PosixFile::write_at(uint64_t offset, const void* source, size_t count) {
  const char* from = static_cast<const char*>(source);
  while (count > 0) {
    const ssize_t done = ::pwrite(descriptor_, from, std::min(count, kMostAtOnce), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) system_failure(path_, "write");
    from += done;
    offset += static_cast<uint64_t>(done);
    count -= static_cast<size_t>(done);
  }
}

void PosixFile::sync() {
  if (fsync(descriptor_) != 0) system_failure(path_, "sync");
}

void PosixFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) system_failure(path_, "close");
}

std::string read_small_file(const std::string& path, uint64_t most) {
  const PosixFile file = PosixFile::open_to_read(path);
  const uint64_t size = file.size();
  if (size > most) fail_data(path, "it has ", size, " bytes, more than the ", most, " expected of such a file.");
  std::string bytes(size, '\0');
  file.read_at(0, bytes.data(), bytes.size());
  refuse_stand_in(path, bytes);
  return bytes;
}

}  // namespace hasten::files
