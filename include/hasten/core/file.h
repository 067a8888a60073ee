// Reading a small file as a whole: settings, indexes, records of programs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace hasten::core {

/// Returns the bytes of the file, or nothing if it cannot be opened or read.
/// Blocks: on the file.
std::optional<std::string> read_file(const std::filesystem::path& path);

}  // namespace hasten::core
