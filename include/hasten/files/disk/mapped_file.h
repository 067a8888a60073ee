// A file as read-only memory: opening costs nothing, and processes share the pages.
//
// A mapped file must not be cut short while it is in use: the system ends programs that touch what is gone (SIGBUS).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "hasten/core/error.h"

namespace hasten::files {

struct MapOptions {
  /// The memory may be written to. Neither the file nor other processes see that.
  bool private_writes = false;
  /// For the error: the expected kind of file, and the room that expects it.
  std::string_view expected = "a file";
  Origin origin = {"files"};
};

class MappedFile {
 public:
  /// Blocks: on the file. Throws: DataError if it cannot be opened or mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path, const MapOptions& options = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const noexcept { return {data_, size_}; }
  const std::string& path() const noexcept { return path_; }

 private:
  MappedFile(const std::string& path, const MapOptions& options);
  std::string path_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hasten::files
