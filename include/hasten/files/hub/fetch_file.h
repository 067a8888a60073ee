// fetch_file: one file as it is, downloaded once. Archives: archive.h.
#pragma once

#include <filesystem>
#include <string>

#include "hasten/files/hub/archive.h"

namespace hasten::files {

/// Returns INTO/NAME, a copy of the file. `source` is a path, or an http(s) address. FetchOptions::name is the file's
/// name, by default the last part of `source`; `sha256` is that of its bytes. Processes of one host may call it at
/// once: the first takes a lock, and the file appears by a rename when it is complete.
/// Blocks: on the network and the disk. Throws: UsageError without `into` or a name, or for a sha256 of
/// the wrong form; CommError if the server cannot be reached; DataError for another hash, or a file that cannot be read
/// or written.
std::filesystem::path fetch_file(const std::string& source, const FetchOptions& options);

}  // namespace hasten::files
