// fetch_archive: a zip or tar archive, downloaded and unpacked once (fastai's untar_data).
#pragma once

#include <filesystem>
#include <string>

namespace hasten::files {

struct FetchOptions {
  /// SHA-256 of the archive in hexadecimal digits. Empty: no check.
  std::string sha256 = {};
  /// The folder that holds what has been unpacked; made if it is not there.
  std::filesystem::path into = {};
  /// Name of the unpacked folder in `into`; empty: the archive's name without .zip, .tar, .tar.gz, .tgz.
  std::string name = {};
  /// Unpacks again although the folder is there.
  bool force = false;
};

/// Returns INTO/NAME with the archive's files. A single folder at the archive's top becomes NAME itself. `source` is a
/// path, or an http(s) address. Processes of one host may call it at once, with and without rank0_first. The first
/// takes a lock, works in a temporary folder, and renames it when it is complete.
/// Blocks: on the network and the disk. Throws: UsageError without `into`, for an unknown kind of archive, or for a
/// sha256 of the wrong form; CommError if the server cannot be reached; DataError for another hash, a damaged archive,
/// or an entry outside of the folder.
std::filesystem::path fetch_archive(const std::string& source, const FetchOptions& options);

}  // namespace hasten::files
