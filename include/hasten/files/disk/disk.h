// Disk: the file system calls that saving makes, as an interface, so that tests record them and let them fail.
//
// RealDisk makes the calls. RecordingDisk (recording_disk.h) also writes a log, from which the states that a crash may
// leave are rebuilt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::files {

/// A call to the file system failed. `code()` is the errno value.
class DiskError : public DataError {
 public:
  DiskError(const std::string& what, const std::string& path, int code);
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// A file under construction.
class DiskFile {
 public:
  virtual ~DiskFile() = default;
  /// Writes all bytes at `offset`. Throws: DiskError.
  virtual void write_at(uint64_t offset, const void* bytes, size_t size) = 0;
  /// Sets the size: cuts what O_DIRECT rounded up. Throws: DiskError.
  virtual void truncate(uint64_t size) = 0;
  /// Makes contents and size durable. Throws: DiskError.
  virtual void sync() = 0;
  /// Closes the file, and throws if the system reports an error only now. The destructor closes without a word.
  virtual void close() = 0;
};

enum class Rename { kReplace, kNoReplace, kExchange };

class Disk {
 public:
  virtual ~Disk() = default;
  /// Makes or empties a file, mode 0666 & ~umask. `direct` requests O_DIRECT; a file system without it uses the page
  /// cache instead.
  virtual std::unique_ptr<DiskFile> create(const std::string& path, bool direct = false) = 0;
  /// Opens a file that is there for writing at offsets.
  virtual std::unique_ptr<DiskFile> open(const std::string& path, bool direct = false) = 0;
  virtual void make_folder(const std::string& path) = 0;
  /// Throws: DiskError with code EEXIST (kNoReplace), EINVAL (a file system without the kind), EXDEV.
  virtual void rename(const std::string& from, const std::string& to, Rename kind) = 0;
  virtual void link(const std::string& from, const std::string& to) = 0;
  virtual void unlink(const std::string& path) = 0;
  virtual void remove_folder(const std::string& path) = 0;  ///< an empty one
  virtual void sync_folder(const std::string& path) = 0;
};

/// Returns the disk that makes the calls. It has no state.
Disk& real_disk();

/// Writes a small file whole: create, write, sync, close. Throws: DiskError.
void write_file(Disk& disk, const std::string& path, std::string_view bytes);

/// Removes a folder with all in it, and nothing that a symbolic link in it leads to. Files that are gone are no error.
/// Throws: DiskError.
void remove_tree(Disk& disk, const std::string& path);

}  // namespace hasten::files
