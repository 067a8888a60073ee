// Writing the tensors of a source to safetensors or torch.save files, as a stream: memory does not grow with the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/files/disk/disk.h"

namespace hasten::files {

struct WeightWriteOptions {
  bool safe_serialization = true;         ///< safetensors; false: torch.save
  uint64_t max_shard_bytes = UINT64_MAX;  ///< one file
  std::optional<Dtype> dtype = {};        ///< to which float64, float32, float16 and bfloat16 tensors are cast
  std::string variant = {};               ///< "fp16": model.fp16.safetensors
  bool sync = true;                       ///< files are durable when the call returns
  /// Reads all files again afterwards and compares their bytes with those of the source.
  bool verify = false;
  size_t num_threads = 0;  ///< 0: one a core, at most 4. Each takes 16 MB.
  /// __metadata__ of safetensors files.
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};
};

struct WrittenWeights {
  std::vector<std::string> files = {};  ///< paths, the index last
  uint64_t tensor_bytes = 0;
};

/// Writes all tensors of `source`, in its order, to `out`. It is a file if it ends in .safetensors, .bin, .pt, .pth or
/// .ckpt. Otherwise it is a folder of model.safetensors or pytorch_model.bin, or their shards with an index. Each file
/// appears by rename, the index last. Files that an earlier save with the same names left in the folder go after that.
/// Blocks: on the disk. Throws: UsageError if `out` cannot be written to or a dtype is not in the form; DataError if
/// the source cannot be read, or if verify finds a difference; DiskError.
WrittenWeights write_weights(Disk& disk, const TensorSource& source, const std::string& out,
                             const WeightWriteOptions& options = {});

/// Removes the files in `folder` that an earlier save_model left, of either form and `variant`, except `kept` (names).
/// Returns the names removed.
std::vector<std::string> remove_stale_weights(Disk& disk, const std::string& folder,
                                              const std::vector<std::string>& kept, const std::string& variant = {});

/// Throws UsageError if `folder` holds a state that save_state wrote: weights saved there would replace its shards.
/// Blocks: for the disk.
void require_no_state(const std::string& folder);

}  // namespace hasten::files
