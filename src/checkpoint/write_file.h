// Files that appear whole: written under a dot name, synced, renamed.
#pragma once

#include <string>

#include "hasten/checkpoint/state_dict.h"

namespace hasten::checkpoint {

/// ".NAME.tmp-PID" beside a path.
std::string temporary_name(const std::string& path);
void write_text(const std::string& path, const std::string& bytes);
/// Writes a safetensors file with all tensors, which must not share memory. Throws: UsageError, DiskError.
void write_safetensors(const StateDict& state, const std::string& path);

}  // namespace hasten::checkpoint
