// hasten's own form as a source, its verification and the repair of a lost manifest. See manifest.h.
#include <algorithm>
#include <filesystem>
#include <map>

#include "files/base/origin.h"
#include "files/base/pieces.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/safetensors_source.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashChunk = 8 << 20;

std::string path_in(const std::string& folder, const std::string& file) {
  return (fs::path(folder) / file).string();
}

core::Xxh128 hash_of_range(const PosixFile& file, uint64_t begin, uint64_t size, std::string& buffer) {
  core::Xxh128Stream hash;
  buffer.resize(std::min<uint64_t>(size, kHashChunk));
  for (uint64_t done = 0; done < size;) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(size - done, kHashChunk));
    file.read_at(begin + done, buffer.data(), count);
    hash.update(buffer.data(), count);
    done += count;
  }
  return hash.value();
}

uint64_t header_bytes(const PosixFile& file) {
  unsigned char length[8];
  file.read_at(0, length, sizeof length);
  uint64_t value = 0;
  for (size_t i = sizeof length; i-- > 0;) value = value << 8 | length[i];
  if (value > file.size() - sizeof length) fail_data(file.path(), "its header is damaged.");
  return value + sizeof length;
}

/// Adds an error for `file` unless its size and header agree with the manifest. Returns it opened if they do.
std::shared_ptr<const SourceFile> verify_file(const ManifestFile& file, const std::string& folder,
                                              Verification& result) {
  const std::string path = path_in(folder, file.name);
  try {
    auto opened = SourceFile::open(path);
    const uint64_t bytes = opened->size();
    if (bytes != file.bytes) {
      result.errors.push_back(text(file.name, ": has ", bytes, " bytes, expected ", file.bytes));
      return nullptr;
    }
    std::string buffer;
    const auto read = opened->opened();
    const core::Xxh128 hash = hash_of_range(*read, 0, header_bytes(*read), buffer);
    if (hash != file.header_xxh3) {
      result.errors.push_back(
          text(file.name, ": its header has the hash ", hash.hex(), ", expected ", file.header_xxh3.hex()));
    }
    return opened;
  } catch (const DataError& error) {
    result.errors.push_back(text(file.name, ": ", inner_words(error.what())));
    return nullptr;
  }
}

void verify_pieces(const Manifest& manifest, const std::vector<std::shared_ptr<const SourceFile>>& files,
                   Verification& result) {
  std::string buffer;
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      if (files[piece.file] == nullptr) continue;
      const uint64_t size = static_cast<uint64_t>(numel_of(piece.box)) * element_bytes(tensor.info.dtype);
      const core::Xxh128 hash = hash_of_range(*files[piece.file]->opened(), piece.position, size, buffer);
      result.bytes += size;
      if (hash == piece.xxh3) continue;
      result.errors.push_back(text(manifest.files[piece.file].name, ": tensor '", tensor.info.name, "' ",
                                   describe(piece.box), " has the hash ", hash.hex(), ", expected ", piece.xxh3.hex()));
    }
  }
}

std::string kind_of(const std::string& file) {
  const std::string stem = file.substr(0, file.find_first_of(".-"));
  return stem == "state" ? "state" : stem;
}

/// Returns the offsets of the parts in this file by name. Empty if it holds whole tensors.
std::map<std::string, std::vector<int64_t>> saved_offsets(const SafetensorsHeader& header, const std::string& path) {
  std::map<std::string, std::vector<int64_t>> offsets;
  const std::string* json = header.find_metadata("DCP_SHARDING_INFO");
  if (json == nullptr) return offsets;
  const core::Value parsed = core::Value::parse_json(*json, path);
  for (const auto& [name, part] : parsed.as_map()) {
    for (const core::Value& offset : part.at("saved_offsets").as_list()) offsets[name].push_back(offset.as_int());
  }
  return offsets;
}

void add_headers(Manifest& manifest, std::map<std::string, size_t>& index, const std::string& folder,
                 const std::string& name) {
  const std::string path = path_in(folder, name);
  const SafetensorsHeader header = read_safetensors_header(path);
  const auto offsets = saved_offsets(header, path);
  const PosixFile file = PosixFile::open_to_read(path);
  std::string buffer;
  manifest.files.push_back({name, file.size(), hash_of_range(file, 0, header.body_offset, buffer)});
  for (const SafetensorsEntry& entry : header.entries) {
    const auto [at, fresh] = index.emplace(entry.info.name, manifest.tensors.size());
    if (fresh) manifest.tensors.push_back({.info = entry.info, .kind = kind_of(name)});
    ManifestTensor& tensor = manifest.tensors[at->second];
    Box box = whole_box(entry.info.shape);
    if (const auto found = offsets.find(entry.info.name);
        found != offsets.end() && found->second.size() == box.size.size()) {
      box.offset = found->second;
    }
    if (tensor.info.shape.size() != box.size.size())
      fail_data(path, "the parts of tensor '", entry.info.name, "' differ in dimensions.");
    for (size_t d = 0; d < box.size.size(); ++d)
      tensor.info.shape[d] = std::max(tensor.info.shape[d], box.offset[d] + box.size[d]);
    const uint64_t position = header.body_offset + entry.begin;
    tensor.pieces.push_back({manifest.files.size() - 1, std::move(box),
                             hash_of_range(file, position, entry.end - entry.begin, buffer), position});
  }
}

}  // namespace

Verification verify_folder(const std::string& folder, bool fast) {
  const Manifest manifest = read_manifest(folder);
  Verification result;
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (const ManifestFile& file : manifest.files) files.push_back(verify_file(file, folder, result));
  if (!fast) verify_pieces(manifest, files, result);
  return result;
}

Manifest manifest_of_headers(const std::string& folder) {
  if (!fs::is_directory(folder)) throw UsageError(kOrigin, "there is no folder '", folder, "'. Correct the path.");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with('.')) names.push_back(name);
  }
  if (names.empty())
    throw UsageError(kOrigin, "'", folder, "' holds no safetensors file, so no manifest can be built from headers.");
  std::sort(names.begin(), names.end());
  Manifest manifest{.writer = "hasten checkpoint repair"};
  std::map<std::string, size_t> index;
  for (const std::string& name : names) add_headers(manifest, index, folder, name);
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<FilePiece> pieces;
    for (const ManifestPiece& piece : tensor.pieces) pieces.push_back({nullptr, piece.position, piece.box});
    check_cover(folder, tensor.info, pieces);
  }
  return manifest;
}

TensorSourcePtr open_hasten_folder(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  check_files(manifest, folder);
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (const ManifestFile& file : manifest.files) files.push_back(SourceFile::open(path_in(folder, file.name)));
  auto source = std::make_shared<PieceSource>(folder, "hasten");
  std::map<std::string_view, const ManifestTensor*> held;
  for (const ManifestTensor& tensor : manifest.tensors) held.emplace(tensor.info.name, &tensor);
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<FilePiece> pieces;
    const ManifestTensor& stored = tensor.tied_to.empty() ? tensor : *held.at(tensor.tied_to);
    for (const ManifestPiece& piece : stored.pieces) pieces.push_back({files[piece.file], piece.position, piece.box});
    source->add_tensor(tensor.info, std::move(pieces));
  }
  return source;
}

}  // namespace hasten::files
