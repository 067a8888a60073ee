// Every length is checked against the archive's end; see zip_reader.h.
#include "files/python/zip_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint64_t kMaxDeflated = uint64_t{4} << 30, kMaxRatio = 1100;

template <class... Parts>
[[noreturn]] void bad_zip(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good zip file: ", parts...,
                  ". Get the file again, or write it anew.");
}

/// Little-endian numbers at positions of a text, checked.
class Bytes {
 public:
  Bytes(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}
  uint64_t number(uint64_t at, size_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at)
      bad_zip(path_, "it ends at byte ", bytes_.size(), " within its directory");
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_[at + i]);
    return value;
  }
  std::string_view part(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at)
      bad_zip(path_, "it ends at byte ", bytes_.size(), " within a record");
    return bytes_.substr(at, size);
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  const std::string& path_;
};

struct Directory {
  uint64_t records = 0, bytes = 0, offset = 0, end = 0;
};

std::optional<uint64_t> find_end(const Bytes& bytes) {
  constexpr uint64_t kEndBytes = 22, kMostComment = 65535;
  if (bytes.size() < kEndBytes) return std::nullopt;
  const uint64_t last = bytes.size() - kEndBytes;
  for (uint64_t back = 0; back <= std::min(last, kMostComment); ++back) {
    const uint64_t at = last - back;
    if (bytes.number(at, 4) == kEnd && bytes.number(at + 20, 2) == back) return at;
  }
  return std::nullopt;
}

Directory find_directory(const Bytes& bytes, const std::string& path) {
  const auto end = find_end(bytes);
  if (!end) bad_zip(path, "it has no end record: it is truncated");
  Directory directory{bytes.number(*end + 10, 2), bytes.number(*end + 12, 4), bytes.number(*end + 16, 4), *end};
  const bool wide = directory.records == 0xffff || directory.bytes == 0xffffffff || directory.offset == 0xffffffff;
  if (*end >= 20 && bytes.number(*end - 20, 4) == kLocator64) {
    const uint64_t at = bytes.number(*end - 12, 8);
    if (at > *end - 20 || *end - 20 - at < 56 || bytes.number(at, 4) != kEnd64)
      bad_zip(path, "its zip64 end record is missing");
    directory = {bytes.number(at + 32, 8), bytes.number(at + 40, 8), bytes.number(at + 48, 8), at};
  } else if (wide) {
    bad_zip(path, "its zip64 locator is missing");
  }
  if (directory.offset > directory.end || directory.bytes > directory.end - directory.offset) {
    bad_zip(path, "its directory of ", directory.bytes, " bytes at ", directory.offset, " does not end before byte ",
            directory.end);
  }
  if (directory.records > directory.bytes / 46)
    bad_zip(path, "its directory of ", directory.bytes, " bytes cannot hold ", directory.records, " records");
  return directory;
}

/// The sizes and the offset that a zip64 field may hold.
struct Sizes {
  uint64_t size = 0, stored = 0, header = 0;
};

void read_zip64(const Bytes& bytes, const std::string& path, uint64_t at, uint64_t end, Sizes& sizes) {
  while (at + 4 <= end) {
    const uint64_t id = bytes.number(at, 2), length = bytes.number(at + 2, 2);
    at += 4;
    if (length > end - at) bad_zip(path, "an extra field is longer than its record");
    if (id == 1) {
      uint64_t field = at;
      for (uint64_t* value : {&sizes.size, &sizes.stored, &sizes.header}) {
        if (*value != 0xffffffff) continue;
        if (field + 8 > at + length) bad_zip(path, "a zip64 field is too short");
        *value = bytes.number(field, 8);
        field += 8;
      }
      return;
    }
    at += length;
  }
}

struct Extent {
  uint64_t begin, end;
};

/// Reads one directory entry at `at`, moves `at` behind it, and returns which bytes of the archive the record takes.
Extent read_entry(const Bytes& bytes, const std::string& path, const Directory& directory, uint64_t& at,
                  ZipRecord& record) {
  if (bytes.number(at, 4) != kCentral) bad_zip(path, "its directory has no record at byte ", at);
  const uint64_t flags = bytes.number(at + 8, 2), method = bytes.number(at + 10, 2);
  Sizes sizes{bytes.number(at + 24, 4), bytes.number(at + 20, 4), bytes.number(at + 42, 4)};
  const uint64_t name = bytes.number(at + 28, 2), extra = bytes.number(at + 30, 2), comment = bytes.number(at + 32, 2);
  record.name = bytes.part(at + 46, name);
  record.crc = static_cast<uint32_t>(bytes.number(at + 16, 4));
  read_zip64(bytes, path, at + 46 + name, at + 46 + name + extra, sizes);
  at += 46 + name + extra + comment;
  if (at > directory.offset + directory.bytes) bad_zip(path, "record '", record.name, "' is longer than the directory");
  if ((flags & 1) != 0) bad_zip(path, "record '", record.name, "' is encrypted");
  if (method != 0 && method != 8)
    bad_zip(path, "record '", record.name, "' uses method ", method, ", expected stored or deflated");
  record.size = sizes.size;
  record.stored = sizes.stored;
  record.deflated = method == 8;
  if (!record.deflated && record.size != record.stored)
    bad_zip(path, "stored record '", record.name, "' has two sizes, ", record.stored, " and ", record.size);
  if (record.deflated && (record.size > kMaxDeflated || record.size / kMaxRatio > record.stored)) {
    bad_zip(path, "record '", record.name, "' of ", record.stored, " bytes claims to inflate to ", record.size,
            ", more than deflate can");
  }
  if (sizes.header > directory.offset || bytes.number(sizes.header, 4) != kLocal)
    bad_zip(path, "record '", record.name, "' is not at byte ", sizes.header);
  record.offset = sizes.header + 30 + bytes.number(sizes.header + 26, 2) + bytes.number(sizes.header + 28, 2);
  if (record.offset > directory.offset || record.stored > directory.offset - record.offset) {
    bad_zip(path, "record '", record.name, "' of ", record.stored, " bytes at ", record.offset,
            " does not end before the directory");
  }
  return {sizes.header, record.offset + record.stored};
}

}  // namespace

ZipReader::ZipReader(std::string_view archive, std::string path) : archive_(archive), path_(std::move(path)) {
  const Bytes bytes(archive_, path_);
  const Directory directory = find_directory(bytes, path_);
  std::vector<Extent> extents;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.records; ++i) {
    ZipRecord record;
    extents.push_back(read_entry(bytes, path_, directory, at, record));
    records_.push_back(std::move(record));
  }
  std::set<std::string_view> names;
  for (const ZipRecord& record : records_) {
    if (!names.insert(record.name).second) bad_zip(path_, "it has two records '", record.name, "'");
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) bad_zip(path_, "records overlap at byte ", extents[i].begin);
  }
}

const ZipRecord* ZipReader::find(std::string_view name) const noexcept {
  const auto found =
      std::find_if(records_.begin(), records_.end(), [&](const ZipRecord& record) { return record.name == name; });
  return found == records_.end() ? nullptr : &*found;
}

std::string_view ZipReader::view(const ZipRecord& record) const {
  if (record.deflated) throw InternalError(kOrigin, "record '", record.name, "' is deflated.");
  return archive_.substr(record.offset, record.stored);
}

std::string ZipReader::read(const ZipRecord& record) const {
  if (!record.deflated) return std::string(view(record));
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw InternalError(kOrigin, "zlib has no memory to inflate.");
  std::string out(record.size, '\0');
  const auto* source = reinterpret_cast<const Bytef*>(archive_.data() + record.offset);
  uint64_t taken = 0, made = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    constexpr uint64_t kMost = 1 << 30;
    stream.next_in = const_cast<Bytef*>(source + taken);
    stream.avail_in = static_cast<uInt>(std::min(record.stored - taken, kMost));
    Bytef more;
    stream.next_out = made < out.size() ? reinterpret_cast<Bytef*>(out.data() + made) : &more;
    stream.avail_out = static_cast<uInt>(std::min(std::max<uint64_t>(out.size() - made, 1), kMost));
    const uInt in = stream.avail_in, space = stream.avail_out;
    code = inflate(&stream, Z_NO_FLUSH);
    taken += in - stream.avail_in;
    made += space - stream.avail_out;
    if (code == Z_OK && in == stream.avail_in && space == stream.avail_out) break;
    if (made > out.size()) break;
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END || made != out.size()) {
    bad_zip(path_, "record '", record.name, "' inflates to ", made, " bytes, expected ", record.size);
  }
  return out;
}

}  // namespace hasten::files
