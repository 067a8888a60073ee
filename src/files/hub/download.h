// One file over HTTP with its hash, for fetch_archive and fetch_file.
#pragma once

#include <filesystem>
#include <string>

namespace hasten::files {

/// Returns true for an http or https address.
bool is_address(const std::string& source);

/// Returns the digits in lower case, "" if there are none. `needed_by`: the function for messages.
/// Throws: UsageError if they are not 64 hexadecimal digits.
std::string wanted_sha256(const std::string& digits, const std::string& needed_by);

/// Writes the bytes behind an address to `path`. Blocks: on the network and the disk. Throws: CommError if the server
/// cannot be reached; DataError for another answer than the file, another hash, or a full disk.
void download(const std::string& source, const std::filesystem::path& path, const std::string& sha256,
              const std::string& needed_by);

/// Throws: DataError if the file has another hash, or cannot be read.
void check_file_hash(const std::filesystem::path& path, const std::string& sha256);

}  // namespace hasten::files
