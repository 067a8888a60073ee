// Headers of the zip form; see zip_writer.h. Padding is in an extra field "FB", as in torch's own files.
#include "files/python/zip_writer.h"

#include <zlib.h>

#include <algorithm>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

constexpr uint64_t kMax32 = 0xffffffff;
constexpr uint64_t kLocalBytes = 30, kWideBytes = 20, kPaddingHead = 4;

class ByteWriter {
 public:
  ByteWriter& number(uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) out_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  ByteWriter& text(std::string_view words) {
    out_ += words;
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

bool is_wide(uint64_t size) {
  return size >= kMax32;
}
uint64_t narrow32(uint64_t value) {
  return std::min(value, kMax32);
}

uint64_t extra_before_padding(const ZipPart& part) {
  return is_wide(part.size) ? kWideBytes : 0;
}

}  // namespace

ZipLayout lay_out_zip(const std::vector<ZipPart>& parts, uint64_t alignment) {
  ZipLayout layout;
  uint64_t at = 0;
  for (const ZipPart& part : parts) {
    if (part.name.size() > 65000)
      throw UsageError(kOrigin, "a record name of ", part.name.size(), " bytes is too long for a zip file.");
    layout.header_at.push_back(at);
    const uint64_t head = at + kLocalBytes + part.name.size() + extra_before_padding(part) + kPaddingHead;
    at = (head + alignment - 1) / alignment * alignment;
    layout.body_at.push_back(at);
    at += part.size;
  }
  layout.directory_at = at;
  layout.file_bytes = at + zip_directory(parts, layout, std::vector<uint32_t>(parts.size())).size();
  return layout;
}

std::string zip_local_header(const std::vector<ZipPart>& parts, const ZipLayout& layout, size_t index, uint32_t crc) {
  const ZipPart& part = parts[index];
  const uint64_t extra = extra_before_padding(part);
  const uint64_t total = layout.body_at[index] - layout.header_at[index];
  const uint64_t padding = total - kLocalBytes - part.name.size() - extra - kPaddingHead;
  ByteWriter out;
  out.number(0x04034b50, 4).number(is_wide(part.size) ? 45 : 0, 2).number(0x0800, 2).number(0, 2).number(0, 4);
  out.number(crc, 4).number(narrow32(part.size), 4).number(narrow32(part.size), 4);
  out.number(part.name.size(), 2).number(extra + kPaddingHead + padding, 2).text(part.name);
  if (extra > 0) out.number(1, 2).number(16, 2).number(part.size, 8).number(part.size, 8);
  out.text("FB").number(padding, 2).text(std::string(padding, 'Z'));
  return out.take();
}

std::string zip_directory(const std::vector<ZipPart>& parts, const ZipLayout& layout,
                          const std::vector<uint32_t>& crcs) {
  ByteWriter out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ZipPart& part = parts[i];
    const bool wide_offset = layout.header_at[i] >= kMax32, wide = is_wide(part.size) || wide_offset;
    const uint64_t field = (is_wide(part.size) ? 16 : 0) + (wide_offset ? 8 : 0);
    out.number(0x02014b50, 4).number(0, 2).number(wide ? 45 : 0, 2).number(0x0800, 2).number(0, 2).number(0, 4);
    out.number(crcs[i], 4).number(narrow32(part.size), 4).number(narrow32(part.size), 4);
    out.number(part.name.size(), 2).number(wide ? field + 4 : 0, 2).number(0, 2).number(0, 2).number(0, 2).number(0, 4);
    out.number(narrow32(layout.header_at[i]), 4).text(part.name);
    if (!wide) continue;
    out.number(1, 2).number(field, 2);
    if (is_wide(part.size)) out.number(part.size, 8).number(part.size, 8);
    if (wide_offset) out.number(layout.header_at[i], 8);
  }
  std::string directory = out.take();
  const uint64_t bytes = directory.size(), end = layout.directory_at + bytes, count = parts.size();
  ByteWriter tail;
  tail.number(0x06064b50, 4).number(44, 8).number(45, 2).number(45, 2).number(0, 4).number(0, 4);
  tail.number(count, 8).number(count, 8).number(bytes, 8).number(layout.directory_at, 8);
  tail.number(0x07064b50, 4).number(0, 4).number(end, 8).number(1, 4);
  tail.number(0x06054b50, 4)
      .number(0, 4)
      .number(std::min<uint64_t>(count, 0xffff), 2)
      .number(std::min<uint64_t>(count, 0xffff), 2);
  tail.number(narrow32(bytes), 4).number(narrow32(layout.directory_at), 4).number(0, 2);
  return directory + tail.take();
}

uint32_t crc32_of(uint32_t crc, const void* bytes, size_t size) {
  return static_cast<uint32_t>(crc32_z(crc, static_cast<const Bytef*>(bytes), size));
}

}  // namespace hasten::files
