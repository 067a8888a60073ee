// The header of a safetensors file: reading, checking and writing it.
//
// The form: the header's length (64 bits little-endian), a JSON object name -> {dtype, shape, data_offsets [begin,
// end)}, spaces, then the values. Together the tensors cover all bytes after the header. Headers that hasten writes are
// padded so that the values begin at a multiple of 4096, as O_DIRECT and mapping require.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

/// A tensor of a safetensors file. F4 tensors have torch's shape (float4_e2m1fn_x2): half the last size of the file.
struct SafetensorsEntry {
  TensorInfo info = {};
  uint64_t begin = 0, end = 0;  ///< bytes from the beginning of the body
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries = {};                      ///< by position in the body
  std::vector<std::pair<std::string, std::string>> metadata = {};  ///< __metadata__, sorted by key
  uint64_t body_offset = 0;                                        ///< of the file
  uint64_t body_bytes = 0;
  const std::string* find_metadata(std::string_view key) const noexcept;
};

/// Reads the header from the first bytes of a file. `head` may be the whole file, or its first bytes as long as they
/// hold the header. `file_bytes` is the size of the file.
/// Throws: DataError for a truncated file, holes, overlaps, duplicates, unknown dtypes, or a header above 100 MB;
/// DataError for sizes that do not fit, or an odd last size of F4.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view head, uint64_t file_bytes);

/// Reads the header of a file, and not its values.
/// Blocks: on the file. Throws: DataError as above, or if the file cannot be opened.
SafetensorsHeader read_safetensors_header(const std::string& path);

/// Returns the order in which safetensors lays tensors out: by element size, largest first, then by name.
std::vector<size_t> safetensors_order(const std::vector<TensorInfo>& tensors);

/// Header of a file that holds `tensors`, with the places they get.
struct SafetensorsLayout {
  std::string head = {};               ///< all bytes before the values
  std::vector<uint64_t> offsets = {};  ///< of each given tensor's values, from the beginning of the file
  uint64_t file_bytes = 0;
};

/// Lays tensors out in safetensors' order. `metadata` is written as it is; `alignment` 0 or 8 gives the reference's
/// form. Throws: UsageError for a dtype that safetensors lacks (complex128), two tensors of one name, or a header above
/// 100 MB.
SafetensorsLayout lay_out_safetensors(const std::vector<TensorInfo>& tensors,
                                      const std::vector<std::pair<std::string, std::string>>& metadata,
                                      uint64_t alignment = 4096);

}  // namespace hasten::files
