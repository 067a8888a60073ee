// The bytes of a zip archive of stored records with aligned bodies, as torch.save lays them out: pure.
//
// All places are known before anything is written, so bodies may be written in any order and headers, which hold the
// CRC-32, last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::files {

struct ZipPart {
  std::string name = {};
  uint64_t size = 0;
};

struct ZipLayout {
  std::vector<uint64_t> header_at = {}, body_at = {};  ///< of each part
  uint64_t directory_at = 0, file_bytes = 0;
};

/// Lays the parts out one after the other, each body at a multiple of `alignment`.
ZipLayout lay_out_zip(const std::vector<ZipPart>& parts, uint64_t alignment = 64);

/// Returns the local header of part `index`: the bytes from header_at to body_at.
std::string zip_local_header(const std::vector<ZipPart>& parts, const ZipLayout& layout, size_t index, uint32_t crc);

/// Returns the directory with its end records: the bytes from directory_at to the end.
std::string zip_directory(const std::vector<ZipPart>& parts, const ZipLayout& layout,
                          const std::vector<uint32_t>& crcs);

/// Continues a CRC-32 over further bytes; 0 begins one.
uint32_t crc32_of(uint32_t crc, const void* bytes, size_t size);

}  // namespace hasten::files
