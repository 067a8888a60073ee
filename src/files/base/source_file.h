// A file that is read now and then: its descriptor may be closed in between, so that a model in many files needs few.
//
// The process keeps the descriptors of the files read last. A file that was closed is opened again at its next read. It
// must then be the same: a folder that is written anew meanwhile is an error. It is private to the room.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

#include "files/base/posix_file.h"

namespace hasten::files {

class SourceFile {
 public:
  /// Opens the file. `flags`: further ones of open(2), such as O_DIRECT. Throws: DataError as PosixFile.
  static std::shared_ptr<const SourceFile> open(const std::string& path, int flags = 0);
  ~SourceFile();
  SourceFile(const SourceFile&) = delete;
  SourceFile& operator=(const SourceFile&) = delete;

  /// Returns the file, opened; it stays open as long as the result lives. Several threads may call it. Throws:
  /// DataError if it is gone or another one by now.
  std::shared_ptr<const PosixFile> opened() const;

  uint64_t size() const noexcept { return identity_.size; }
  const std::string& path() const noexcept { return path_; }

  /// Descriptors that stay open in this process beside those of reads under way.
  static constexpr size_t kMostOpen = 16;

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    uint64_t size = 0;
    timespec changed = {};
  };
  SourceFile(std::string path, int flags) : path_(std::move(path)), flags_(flags) {}
  static Identity identity_of(const PosixFile& file);
  std::string path_;
  int flags_ = 0;
  Identity identity_ = {};
};

}  // namespace hasten::files
