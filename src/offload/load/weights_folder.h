// The folder of weights that a device map puts on "disk": a file for each tensor, and their index.
#pragma once

#include <string>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/offload/map/tree_of.h"

namespace hasten::offload::detail {

/// Writes the tensors and adds them to the folder's index. Blocks: on the disk. Throws: DataError.
void write_folder(const std::string& folder, const std::vector<NamedTensorRef>& items);

/// Throws: UsageError naming the first tensor that the folder lacks, or has in another shape or dtype.
void require_same_tensors(const files::TensorSource& source, const std::vector<NamedTensorRef>& items,
                          const std::string& folder);

}  // namespace hasten::offload::detail
