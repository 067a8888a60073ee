// Reading zip archives: central directory, zip64, stored and deflated records, from memory or a mapping.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::files {

struct ZipRecord {
  std::string name = {};
  uint64_t offset = 0;  ///< of the (perhaps compressed) bytes in the archive
  uint64_t stored = 0;  ///< bytes in the archive
  uint64_t size = 0;    ///< bytes once inflated
  uint32_t crc = 0;
  bool deflated = false;
};

class ZipReader {
 public:
  /// Reads the directory of `archive`, which must outlive this. `path` appears in messages.
  /// Throws: DataError for a truncated or inconsistent archive, records that overlap or share a name, encryption, or an
  /// unknown method; DataError for more than 4 GiB, or a ratio above 1100 in a deflated record.
  ZipReader(std::string_view archive, std::string path);

  const std::vector<ZipRecord>& records() const noexcept { return records_; }
  const ZipRecord* find(std::string_view name) const noexcept;
  /// Returns the bytes of a stored record, without copying.
  std::string_view view(const ZipRecord& record) const;
  /// Returns the bytes, inflated where need be. Throws: DataError if they do not inflate to `size` bytes.
  std::string read(const ZipRecord& record) const;
  /// Returns true if the archive begins as a zip file does.
  static bool is_zip(std::string_view archive) noexcept {
    return archive.starts_with("PK\x03\x04") || archive.starts_with("PK\x05\x06");
  }

 private:
  std::string_view archive_;
  std::string path_;
  std::vector<ZipRecord> records_;
};

}  // namespace hasten::files
