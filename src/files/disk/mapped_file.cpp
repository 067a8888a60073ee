// mmap of a whole file; see mapped_file.h.
#include "hasten/files/disk/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "files/base/origin.h"
#include "files/base/posix_file.h"

namespace hasten::files {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  return std::shared_ptr<const MappedFile>(new MappedFile(path));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const PosixFile file = PosixFile::open_to_read(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* const at = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (at == MAP_FAILED) throw DataError(kOrigin, path, "cannot map '", path, "': ", std::strerror(errno), ".");
  data_ = static_cast<char*>(at);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace hasten::files
