// A file descriptor with reads and writes that complete or throw; private to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hasten::files {

class PosixFile {
 public:
  /// `flags`: further ones of open(2). Throws: DataError naming the path and the system's reason.
  static PosixFile open_to_read(const std::string& path, int flags = 0);
  /// Makes or empties the file, mode 0666 & ~umask.
  static PosixFile create(const std::string& path);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;

  uint64_t size() const;
  /// Reads exactly `count` bytes. Throws: DataError if the file ends before them or cannot be read.
  void read_at(uint64_t offset, void* target, size_t count) const;
  /// Writes all bytes. Throws: DataError with the system's reason.
  void write_at(uint64_t offset, const void* source, size_t count);
  void sync();
  /// Closes and reports the system's error of that call (EDQUOT).
  void close();
  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }

 private:
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_ = -1;
  std::string path_;
};

/// Returns the whole text of a small file. Throws: DataError if it cannot be read or has more than `most` bytes.
std::string read_small_file(const std::string& path, uint64_t most = 1 << 30);

}  // namespace hasten::files
