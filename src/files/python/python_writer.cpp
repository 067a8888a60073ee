// Writing torch.save's zip form: bodies first, headers when their CRC is known; see python_file.h.
#include <algorithm>
#include <filesystem>

#include "files/base/origin.h"
#include "files/python/pickle_writer.h"
#include "files/python/zip_writer.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kChunk = 8 << 20;

/// Writes the bytes of a storage at `offset` and returns their CRC-32.
uint32_t write_storage(DiskFile& file, uint64_t offset, const PythonStorage& storage, std::string& buffer) {
  uint32_t crc = 0;
  const auto size = static_cast<uint64_t>(storage.bytes);
  if (storage.data == nullptr && !storage.read && size > 0) {
    throw UsageError(kOrigin, "a storage of ", size,
                     " bytes has no values. Give its tensor values before it is saved.");
  }
  const size_t part = swap_bytes(storage.dtype);
  for (uint64_t at = 0; at < size;) {
    const uint64_t count = std::min(size - at, kChunk);
    const char* bytes = storage.data == nullptr ? nullptr : storage.data + at;
    if (bytes == nullptr || storage.swapped) {
      buffer.resize(count);
      storage.data == nullptr ? storage.read(at, count, buffer.data())
                              : static_cast<void>(std::copy_n(bytes, count, buffer.data()));
      if (storage.swapped && part > 1) {
        for (uint64_t i = 0; i + part <= count; i += part) std::reverse(buffer.data() + i, buffer.data() + i + part);
      }
      bytes = buffer.data();
    }
    crc = crc32_of(crc, bytes, count);
    file.write_at(offset + at, bytes, count);
    at += count;
  }
  return crc;
}

std::string root_of(const std::string& path, const PythonWriteOptions& options) {
  if (!options.root.empty()) return options.root;
  const std::string stem = fs::path(path).stem().string();
  return stem.empty() || stem.starts_with('.') ? "archive" : stem;
}

}  // namespace

void write_python_file(Disk& disk, const std::string& path, const PythonValue& value,
                       const PythonWriteOptions& options) {
  const WrittenPickle pickle = write_pickle(value);
  const std::string root = root_of(path, options) + "/";
  const std::string_view order = "little", version = "3\n";
  std::vector<ZipPart> parts{{root + "data.pkl", pickle.bytes.size()}, {root + "byteorder", order.size()}};
  for (size_t k = 0; k < pickle.storages.size(); ++k) {
    parts.push_back({root + "data/" + std::to_string(k), static_cast<uint64_t>(pickle.storages[k]->bytes)});
  }
  parts.push_back({root + "version", version.size()});
  const ZipLayout layout = lay_out_zip(parts);
  const auto file = disk.create(path);
  std::vector<uint32_t> crcs(parts.size());
  std::string buffer;
  const auto small = [&](size_t index, std::string_view bytes) {
    file->write_at(layout.body_at[index], bytes.data(), bytes.size());
    crcs[index] = crc32_of(0, bytes.data(), bytes.size());
  };
  small(0, pickle.bytes);
  small(1, order);
  for (size_t k = 0; k < pickle.storages.size(); ++k)
    crcs[2 + k] = write_storage(*file, layout.body_at[2 + k], *pickle.storages[k], buffer);
  small(parts.size() - 1, version);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string header = zip_local_header(parts, layout, i, crcs[i]);
    file->write_at(layout.header_at[i], header.data(), header.size());
  }
  const std::string directory = zip_directory(parts, layout, crcs);
  file->write_at(layout.directory_at, directory.data(), directory.size());
  file->sync();
  file->close();
}

void save_python_file(Disk& disk, const std::string& path, const PythonValue& value,
                      const PythonWriteOptions& options) {
  const std::string temporary = temporary_folder_of(path, new_save_id());
  PythonWriteOptions rooted = options;
  rooted.root = root_of(path, options);
  try {
    write_python_file(disk, temporary, value, rooted);
    disk.rename(temporary, path, Rename::kReplace);
  } catch (...) {
    try {
      remove_tree(disk, temporary);
    } catch (const DiskError&) {
      // The caller gets the first failure.
    }
    throw;
  }
  const std::string parent = fs::path(path).parent_path().string();
  disk.sync_folder(parent.empty() ? "." : parent);
}

}  // namespace hasten::files
