// MemoryFile: memory with a descriptor, which several processes map.
//
// An anonymous file (memfd) has no name, does not count against the size of /dev/shm and is gone with its last
// user, however that ends. Memory that shall rest on a disk is a named file instead. The descriptor is handed
// to other processes over a Unix socket (descriptor_passing.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hasten {

/// A mapped range of a file. It stays valid when the file object is gone.
class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  Mapping() = default;
  Mapping(int descriptor, int64_t num_bytes, Access access);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  int64_t size() const noexcept { return size_; }

 private:
  void unmap() noexcept;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

class MemoryFile {
 public:
  /// Makes an anonymous file of exactly `num_bytes` zeros. Pages are taken from the system at their first use. `label`
  /// shows up in /proc/PID/maps. Throws: std::system_error, where the system refuses memory
  /// files or the size is above a limit (ulimit -f).
  static MemoryFile create(const std::string& label, int64_t num_bytes);
  /// Returns a file at `path`, made or emptied, of exactly `num_bytes` zeros, whose space is reserved.
  /// Throws: DataError with the path, where it cannot be made or is too large.
  static MemoryFile create_at(const std::string& path, int64_t num_bytes);
  /// Takes over a descriptor that another process has passed on.
  /// Throws: std::runtime_error if its size is not `num_bytes`.
  static MemoryFile adopt(int descriptor, int64_t num_bytes);

  ~MemoryFile();
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;

  int descriptor() const noexcept { return descriptor_; }
  int64_t size() const noexcept { return size_; }
  /// Maps all of it. Throws: std::system_error (no memory, a limit).
  Mapping map(Mapping::Access access) const;

 private:
  MemoryFile(int descriptor, int64_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace hasten
