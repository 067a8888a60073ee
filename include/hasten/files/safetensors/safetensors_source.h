// TensorSource over one safetensors file, or over the files of an index.
#pragma once

#include <string>
#include <vector>

#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

/// Opens safetensors files. `path` is what messages name. Each file is one shard with whole tensors.
/// Blocks: on the headers. Throws: DataError for a bad header, or a tensor that two files hold.
TensorSourcePtr open_safetensors(const std::string& path, const std::vector<std::string>& files);
inline TensorSourcePtr open_safetensors(const std::string& file) {
  return open_safetensors(file, {file});
}

/// Opens files whose headers name the part of each tensor that they hold (DCP_SHARDING_INFO): those of torch's
/// HuggingFaceStorageWriter, and hasten's own shards. Files without that key hold whole tensors. Throws: DataError,
/// besides the above, if parts do not cover a tensor once.
TensorSourcePtr open_sharded_safetensors(const std::string& path, const std::vector<std::string>& files);

/// Returns true if the header of `file` has DCP_SHARDING_INFO.
bool has_sharding_info(const std::string& file);

}  // namespace hasten::files
