// Offload folders: one raw file NAME.dat for each tensor, and index.json, as Accelerate writes and reads them.
//
// A .dat file holds little-endian row-major values: one element for a scalar, one zero byte for a tensor without
// elements. An index entry is {"dtype", "shape"}, with numpy's names. For a tensor in a safetensors file it is
// {"safetensors_file", "weight_name", "dtype"}, and the tensor is read in that dtype. A key that is null counts as left
// out. The index is written last, by rename: a folder without it counts as empty.
#pragma once

#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

/// Writes FOLDER/NAME.dat. `data` holds the elements contiguously.
/// Blocks: on the disk. Throws: DataError if it cannot be written whole.
void write_offload_weight(const std::string& folder, const TensorInfo& info, const void* data);

/// Merges the tensors into FOLDER/index.json, at the end or in the place of entries of the same name. Writes nothing if
/// there are none. Throws: DataError if it cannot be written, or the index there is none.
void merge_offload_index(const std::string& folder, const std::vector<TensorInfo>& tensors);

/// Returns the index's text: indented by 2, as Accelerate writes it.
std::string offload_index_text(const core::Value& index);

/// Returns true if the folder has an index of offloaded tensors. Throws: DataError for an index.json that is no JSON.
bool is_offload_folder(const std::string& folder);

/// Opens a folder. Blocks: on the index. Throws: DataError if the index is none.
TensorSourcePtr open_offload_folder(const std::string& folder);

/// Opens the tensors of an index. `folder` is that of .dat files; an index that names safetensors files needs none.
/// Throws: DataError naming the entry that is none, or a file that lacks the tensor.
TensorSourcePtr open_offload_index(const core::Value& index, const std::string& folder = {});

}  // namespace hasten::files
