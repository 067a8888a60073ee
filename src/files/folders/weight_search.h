// Finding the files of a model's weights from a path, as load_checkpoint_in_model does.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hasten::files {

struct WeightFiles {
  std::vector<std::string> files = {};  ///< paths, sorted; one without an index
  std::string index = {};               ///< path of the index; "" if there is none
  /// Tensor → number of its file, as the index has it; empty without one.
  std::vector<std::pair<std::string, size_t>> tensors = {};
  std::vector<std::string> remarks = {};  ///< such as both safetensors and .bin being there
};

/// Finds the files for `path`: a file of weights, an index (*.json), or a folder. A folder is searched for
/// model.safetensors, then its index, then pytorch_model.bin, then its index, then exactly one other index. That is a
/// *.index.json, or an index.json that maps tensors to files.
/// Where safetensors and .bin are both there, safetensors is taken and a remark reports it (the peer takes .bin).
/// Blocks: on the file system. Throws: UsageError if the path is not there, or a folder holds no weights; UsageError if
/// there is no whole file, and an index of another name stands beside others; DataError if a file of the index is
/// missing.
WeightFiles find_weights(const std::string& path);

}  // namespace hasten::files
