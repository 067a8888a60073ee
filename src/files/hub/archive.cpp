// See archive.h. tar: POSIX ustar with pax and GNU long names. Links are left out, since no data set needs them.
#include "hasten/files/hub/archive.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "files/hub/download.h"
#include "files/hub/hub_cache.h"
#include "files/python/zip_reader.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/disk/mapped_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

/// "imagenette2" of "https://…/imagenette2.tgz?x".
std::string archive_name(const std::string& source) {
  auto name = is_address(source) ? source.substr(0, source.find_first_of("?#")) : source;
  name = name.substr(name.find_last_of('/') + 1);
  for (const std::string suffix : {".tar.gz", ".tgz", ".tar", ".zip"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  throw UsageError(Origin{"files"}, "'", source,
                   "' names no archive that fetch_archive knows; expected .zip, .tar, .tar.gz or .tgz.");
}

/// Where an entry goes. Throws: DataError for one outside of the folder.
fs::path place_of(const fs::path& folder, const std::string& name, const std::string& source) {
  const auto relative = fs::path(name).lexically_normal();
  if (name.empty() || relative.is_absolute() || relative.begin()->string() == ".." ||
      name.find('\0') != std::string::npos) {
    throw DataError(Origin{"files"}, source, source, " has the entry '", name,
                    "', which would lie outside of its folder. Do not unpack it.");
  }
  return folder / relative;
}

void write_entry(const fs::path& path, std::string_view bytes, bool append) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, append ? std::ios::binary | std::ios::app : std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file)
    throw DataError(Origin{"files"}, path.string(), "cannot write ", path.string(),
                    "; free space, or name another folder.");
}

void unpack_zip(const fs::path& archive, const fs::path& folder, const std::string& source) {
  const auto mapped = MappedFile::open(archive.string());
  const ZipReader zip(mapped->bytes(), source);
  for (const auto& record : zip.records()) {
    const auto path = place_of(folder, record.name, source);
    if (record.name.ends_with('/'))
      fs::create_directories(path);
    else
      write_entry(path, zip.read(record), false);
  }
}

/// A tar file, plain or gzipped, read from front to back.
class TarReader {
 public:
  TarReader(const fs::path& archive, std::string source)
      : file_(gzopen(archive.c_str(), "rb"), gzclose), source_(std::move(source)) {
    if (!file_) throw DataError(Origin{"files"}, source_, "cannot read ", source_, "; check the path.");
    gzbuffer(file_.get(), 1 << 18);
  }

  void unpack(const fs::path& folder) {
    std::string header, long_name;
    while (read(header, kBlock), header.find_first_not_of('\0') != std::string::npos) {
      check(header);
      uint64_t size = number(header, 124, 12);
      const char type = header[156];
      auto name = std::exchange(long_name, {});
      if (name.empty())
        name = (header.compare(257, 5, "ustar") == 0 && header[345] != '\0' ? field(header, 345, 155) + "/" : "") +
               field(header, 0, 100);
      if (type == 'L' || type == 'x') {
        const auto text = body(size);
        long_name = type == 'L' ? text.substr(0, text.find('\0')) : pax_path(text);
      } else if (type == '5') {
        fs::create_directories(place_of(folder, name, source_));
      } else if (type == '0' || type == '\0') {
        copy(place_of(folder, name, source_), size);
      } else {
        skip(size);
      }
    }
  }

 private:
  static constexpr size_t kBlock = 512;

  void read(std::string& into, size_t size) {
    into.resize(size);
    const int count = gzread(file_.get(), into.data(), static_cast<unsigned>(size));
    if (count != static_cast<int>(size))
      throw DataError(Origin{"files"}, source_, source_,
                      " ends in the middle of an entry or is damaged; fetch it again.");
  }
  void check(const std::string& header) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
    if (sum != number(header, 148, 8))
      throw DataError(Origin{"files"}, source_, source_, " is no tar file, or damaged: a header's checksum differs.");
  }
  static std::string field(const std::string& header, size_t at, size_t size) {
    const auto text = header.substr(at, size);
    return text.substr(0, text.find('\0'));
  }
  uint64_t number(const std::string& header, size_t at, size_t size) const {
    uint64_t value = 0;
    if ((static_cast<unsigned char>(header[at]) & 0x80U) != 0) {  // base 256
      for (size_t i = at + 1; i < at + size; ++i) value = value << 8U | static_cast<unsigned char>(header[i]);
      return value;
    }
    for (const char c : field(header, at, size)) {
      if (c >= '0' && c <= '7')
        value = value * 8 + static_cast<uint64_t>(c - '0');
      else if (c != ' ')
        throw DataError(Origin{"files"}, source_, source_, " is no tar file, or damaged: '", c, "' in a number.");
    }
    return value;
  }
  /// The records of a pax header are "LENGTH KEY=VALUE\n".
  static std::string pax_path(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t blank = text.find(' ', at), length = std::strtoull(text.c_str() + at, nullptr, 10);
      if (blank == std::string::npos || length == 0 || at + length > text.size()) break;
      const auto record = text.substr(blank + 1, at + length - blank - 2);
      if (record.starts_with("path=")) return record.substr(5);
      at += length;
    }
    return {};
  }
  static uint64_t padded(uint64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }
  std::string body(uint64_t size) {
    if (size > (1 << 20))
      throw DataError(Origin{"files"}, source_, source_, " has a name of ", size, " bytes; it is damaged.");
    std::string text;
    read(text, padded(size));
    text.resize(size);
    return text;
  }
  void parts(uint64_t size, const std::function<void(std::string_view)>& take) {
    std::string part;
    for (uint64_t left = size; left > 0;) {
      const auto count = std::min<uint64_t>(left, 1 << 20);
      read(part, static_cast<size_t>(left == count ? padded(count) : count));
      take(std::string_view(part).substr(0, count));
      left -= count;
    }
  }
  void copy(const fs::path& path, uint64_t size) {
    write_entry(path, {}, false);
    std::ofstream file(path, std::ios::binary);
    parts(size, [&](std::string_view bytes) { file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())); });
    file.close();
    if (!file)
      throw DataError(Origin{"files"}, path.string(), "cannot write ", path.string(),
                      "; free space, or name another folder.");
  }
  void skip(uint64_t size) {
    parts(size, [](std::string_view) {});
  }

  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::string source_;
};

/// Returns the only folder at the top, else the folder itself.
fs::path top_of(const fs::path& folder) {
  std::vector<fs::path> entries(fs::directory_iterator(folder), fs::directory_iterator{});
  return entries.size() == 1 && fs::is_directory(entries.front()) ? entries.front() : folder;
}

}  // namespace

std::filesystem::path fetch_archive(const std::string& source, const FetchOptions& options) {
  const auto own_name = archive_name(source);
  if (options.into.empty())
    throw UsageError(Origin{"files"}, "fetch_archive without a folder; set FetchOptions::into.");
  const auto sha256 = wanted_sha256(options.sha256, "fetch_archive");
  const auto name = options.name.empty() ? own_name : options.name;
  const auto folder = options.into / name;
  if (!options.force && fs::exists(folder)) return folder;
  fs::create_directories(options.into);
  const hub::LockFile lock((options.into / ("." + name + ".lock")).string());
  if (!options.force && fs::exists(folder)) return folder;

  auto& disk = real_disk();
  const auto temporary = make_temporary_folder(disk, folder.string(), new_save_id());
  const std::shared_ptr<void> leave(nullptr, [&](void*) {
    std::error_code gone;
    fs::remove_all(temporary, gone);
  });
  const auto unpacked = fs::path(temporary) / "unpacked";
  fs::create_directory(unpacked);
  fs::path archive = source;
  if (is_address(source)) {
    archive = fs::path(temporary) / ".download";
    download(source, archive, sha256, "fetch_archive");
  } else if (!sha256.empty()) {
    check_file_hash(archive, sha256);
  }
  std::string start(4, '\0');
  std::ifstream(archive, std::ios::binary).read(start.data(), 4);
  if (ZipReader::is_zip(start))
    unpack_zip(archive, unpacked, source);
  else
    TarReader(archive, source).unpack(unpacked);
  if (fs::exists(folder)) remove_durably(disk, folder.string());
  disk.rename(top_of(unpacked).string(), folder.string(), Rename::kReplace);
  return folder;
}

}  // namespace hasten::files
