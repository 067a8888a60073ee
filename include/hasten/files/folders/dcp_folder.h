// Folders of torch.distributed.checkpoint (DCP): `.metadata` and `__{rank}_{n}.distcp`.
//
// Every chunk of a tensor is a whole torch.save file at [offset, offset + length) of a .distcp file. Any box is read
// from the chunks that it touches. docs/formats/dcp.md describes the folder.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// A step of the path of a value in the saved state_dict: a key or an index.
using DcpKey = std::variant<std::string, int64_t>;

struct DcpOptions {
  /// Takes off the first key where all tensors share it ("model" of {"model": state_dict}), as the peer's merge does.
  bool open_single_key = true;
};

class DcpFolder {
 public:
  /// Blocks: on `.metadata`. Throws: DataError if it is damaged, or a chunk's file is missing.
  static DcpFolder open(const std::string& folder, const DcpOptions& options = {});

  /// Returns the tensors, named by their paths joined with dots.
  const TensorSourcePtr& tensors() const noexcept { return tensors_; }
  /// Returns the other values (numbers, lists) under their flat keys, read from their chunks now.
  std::map<std::string, PythonValue> values() const;
  /// Returns the path of each flat key in the saved state_dict.
  const std::map<std::string, std::vector<DcpKey>>& paths() const noexcept { return paths_; }
  /// Returns the whole saved state_dict as nested values, tensors as those of the files.
  PythonValue state_dict() const;

  static bool is_dcp(const std::string& folder);

 private:
  struct Chunk {
    std::string file;
    uint64_t offset = 0, length = 0;
    Box box = {};
  };
  std::string folder_;
  TensorSourcePtr tensors_;
  std::map<std::string, Chunk> values_;
  /// Flat keys in the order of the file, with the names of tensors ("" for other values).
  std::vector<std::pair<std::string, std::string>> order_;
  std::map<std::string, std::vector<DcpKey>> paths_;
  friend struct DcpReader;
};

}  // namespace hasten::files
