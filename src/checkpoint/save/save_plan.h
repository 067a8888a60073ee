// SavePlan: which rank writes which piece into which file, at which byte. Pure.
//
// All ranks compute the same plan from the same list of pieces, so a save needs no messages for it. The plan deals
// whole tensors that all ranks hold to the ranks by bytes. Owners write the pieces of split tensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/base/box.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::checkpoint {

/// Every rank holds an equal copy of the piece.
inline constexpr int kEveryRank = -1;

struct PieceInfo {
  /// Global name in the manifest, dtype, whole shape.
  files::TensorInfo info = {};
  /// As ManifestTensor::kind: "model", "model_1", "optimizer", "random", "custom", "gradient".
  std::string kind = "model";
  files::Box box = {};
  /// The rank that holds it, or kEveryRank.
  int rank = kEveryRank;

  bool operator==(const PieceInfo& other) const;
};

/// A piece in its file.
struct PlannedPiece {
  /// Index into the list of pieces.
  size_t piece = 0;
  /// Position of its first byte in the file.
  uint64_t position = 0;
};

struct PlannedFile {
  std::string name = {};
  int writer = 0;
  /// All bytes before the values; its size is a multiple of 4096.
  std::string head = {};
  uint64_t bytes = 0;
  std::vector<PlannedPiece> pieces = {};
};

struct SavePlan {
  std::vector<PlannedFile> files = {};
  /// Texts of index files by name ("model.safetensors.index.json"), where whole tensors of a model lie in several
  /// files.
  std::vector<std::pair<std::string, std::string>> indexes = {};
};

/// Plans the files of a save. Model i goes to model[_i]*.safetensors, the rest to state*.safetensors: one file each for
/// one writer, else -00001-of-0000N by rank. A tensor that is split carries torch's DCP_SHARDING_INFO, and further
/// boxes of it on one rank go to ….part1.safetensors. Throws: UsageError if two pieces of
/// one name have different shapes or dtypes, or for a rank outside the world.
SavePlan plan_save(const std::vector<PieceInfo>& pieces, int world_size);

/// Returns the name inside the files of model i: without "model_i/".
std::string name_in_file(const PieceInfo& piece);
/// "model", "model_1" …
std::string model_kind(size_t index);
/// Returns a tensor's name in the manifest: plain for the first model, "model_1/weight" for others.
std::string manifest_name(size_t model, const std::string& name);

/// Pieces as a list of plain values, to be sent, and back. Throws: UsageError for another
/// form.
core::Value to_value(const std::vector<PieceInfo>& pieces);
std::vector<PieceInfo> pieces_of(const core::Value& value);

}  // namespace hasten::checkpoint
