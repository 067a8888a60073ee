// MappedRegion: a weight file mapped as it lies, and tensors over it.
//
// The mapping is private and without reserved memory. Nothing is copied, and ranks of a host share the page cache. A
// write copies the page, so that the file never changes. Cold data must enter the page cache by sequential reads. After
// page faults Linux holds it in small folios, and computing over them is slower (docs/big_models.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hasten::offload {

class MappedRegion : public std::enable_shared_from_this<MappedRegion> {
 public:
  /// Blocks: on the file system. Throws: DataError if the file cannot be opened or mapped.
  static std::shared_ptr<MappedRegion> open(const std::string& path);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  const std::string& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return size_; }
  /// Returns true on nfs, lustre, fuse or 9p, where a page fault costs a round trip.
  bool is_on_network() const noexcept { return on_network_; }

  /// Returns a tensor over the file's bytes, which keeps the mapping. Strides count elements.
  /// Throws: DataError if it reaches beyond the file; UsageError if `offset` is no multiple of the element size.
  at::Tensor tensor(uint64_t offset, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                    at::ScalarType type);

  /// Throws DataError if the file has another size, time or inode than when it was opened. Replacing it by rename is no
  /// change: the mapping holds the old file.
  void require_unchanged() const;
  /// Reads bytes into the page cache, in pieces of 4 MB. Blocks: on the disk. Throws: DataError for a read error.
  void read_into_cache(uint64_t offset, uint64_t bytes) const;
  /// Maps the whole pages inside the range if the page cache holds them all. Returns false otherwise: read_into_cache
  /// then.
  bool map_if_cached(uint64_t offset, uint64_t bytes) const noexcept;
  /// Lets the whole pages inside the range go, here and, unless `keep_cached`, in the page cache. Their contents come
  /// back at the next use. Writes to them would be lost: make_writable goes before a write.
  void drop(uint64_t offset, uint64_t bytes, bool keep_cached) noexcept;
  /// Makes the whole pages inside the range read-only, or writable again.
  void set_writable(uint64_t offset, uint64_t bytes, bool writable) noexcept;

 private:
  explicit MappedRegion(const std::string& path);
  struct Range {
    char* begin;
    uint64_t bytes, offset;
  };
  Range whole_pages(uint64_t offset, uint64_t bytes) const noexcept;

  std::string path_;
  int file_ = -1;
  char* data_ = nullptr;
  uint64_t size_ = 0, device_ = 0, inode_ = 0;
  int64_t changed_s_ = 0, changed_ns_ = 0;
  bool on_network_ = false;
};

}  // namespace hasten::offload
