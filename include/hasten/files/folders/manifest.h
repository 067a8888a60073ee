// Manifest: the contents of a saved state, by global names, shapes and boxes. It is the file manifest.json of hasten's
// own form.
//
// It is written last, so that a folder with a manifest is complete. Loading depends on no rank and no world size of the
// run that saved. docs/formats/hasten.md describes the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/core/hash.h"
#include "hasten/core/value.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

class Disk;

inline constexpr std::string_view kManifestFile = "manifest.json";

struct ManifestFile {
  std::string name = {};  ///< relative to the folder
  uint64_t bytes = 0;
  core::Xxh128 header_xxh3 = {};  ///< of all bytes before the values
};

struct ManifestPiece {
  size_t file = 0;  ///< index in Manifest::files
  Box box = {};
  core::Xxh128 xxh3 = {};  ///< of the piece's bytes
  uint64_t position = 0;   ///< of its first byte in the file
};

struct ManifestTensor {
  TensorInfo info = {};        ///< global shape; complex128 as such, although the file holds F64
  std::string kind = "model";  ///< "model", "model_1", "optimizer", "random", "custom", "gradient"
  std::string tied_to = {};    ///< another name that holds the values; pieces are then empty
  std::vector<ManifestPiece> pieces = {};
};

struct Manifest {
  int64_t version = 1;
  std::string writer = {}, libtorch = {}, save_id = {};
  double time = 0;  ///< seconds since 1970
  int64_t world_size = 1;
  std::string strategy = {};
  std::vector<std::string> hosts = {};
  int64_t step = 0, iteration = 0;
  core::Value accumulation = {};
  std::vector<ManifestFile> files = {};
  std::vector<ManifestTensor> tensors = {};
  /// Parts without tensors: "optimizers", "schedulers", "scaler", "loaders", "random", "custom", "trackers", and keys
  /// of other writers, which stay.
  core::Value parts = core::Value::map();

  const ManifestTensor* find(std::string_view name) const noexcept;
  uint64_t total_bytes() const noexcept;
};

std::string to_json(const Manifest& manifest);

/// Returns the tag in the file `latest` of a folder, by DeepSpeed's names; nothing without one.
/// Blocks: for the disk.
std::string latest_tag(const std::string& folder);

/// Returns the folder of a tag in `folder`, if it has a manifest: `tag`, or else the one that the file `latest` names.
/// Otherwise returns `folder`. Blocks: for the disk.
std::string tagged_folder(const std::string& folder, std::string tag = {});

/// Reads a manifest. `path` appears in messages.
/// Throws: DataError for another format, a higher version, a missing key, a box outside its
/// tensor, or pieces that do not cover a tensor once.
Manifest parse_manifest(std::string_view json, const std::string& path);
/// Reads FOLDER/manifest.json.
Manifest read_manifest(const std::string& folder);

/// Writes FOLDER/manifest.json durably. Throws: DiskError.
void write_manifest(Disk& disk, const std::string& folder, const Manifest& manifest);

/// Throws DataError, naming the first difference, unless all files are there with their sizes. Reads no contents.
void check_files(const Manifest& manifest, const std::string& folder);

/// Result of reading all bytes of a saved state.
struct Verification {
  uint64_t bytes = 0;
  std::vector<std::string> errors = {};  ///< a message for each damaged file or tensor
};
/// Compares headers and all pieces with the manifest's hashes (`fast`: files and headers only).
/// Blocks: on the disk. Throws: DataError if the manifest cannot be read.
Verification verify_folder(const std::string& folder, bool fast = false);

/// Builds a manifest from the headers of the safetensors files in a folder whose manifest is gone. Hashes are computed;
/// settings that stood in the manifest alone are lost.
Manifest manifest_of_headers(const std::string& folder);

/// Returns the source of the tensors of a saved state.
TensorSourcePtr open_hasten_folder(const std::string& folder);

}  // namespace hasten::files
