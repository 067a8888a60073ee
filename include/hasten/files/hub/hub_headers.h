// Names, dtypes and shapes of a hub repository's weights, without their values.
#pragma once

#include <string>

#include "hasten/core/env.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/files/hub/hub.h"

namespace hasten::files {

/// Reads the headers of a repository's safetensors files (model.safetensors, or those that its index names) by range
/// requests. The source has no values: read() throws UsageError.
/// Blocks: on the network. Throws: UsageError for a repository that is not there or has no safetensors files; CommError
/// if the server cannot be reached; DataError for a broken header.
TensorSourcePtr open_hub_headers(const std::string& repo, const hub::DownloadOptions& options,
                                 const Environment& environment);

/// Returns a small text file of a repository, "" if it has none of that name.
std::string read_hub_text(const std::string& repo, const std::string& file, const hub::DownloadOptions& options,
                          const Environment& environment);

}  // namespace hasten::files
