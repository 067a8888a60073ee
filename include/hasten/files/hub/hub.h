// Downloads from a Hugging Face hub, or a server of that form, into the cache that huggingface_hub uses.
//
// The cache has the same folders, names and links, so that Python and hasten share its files. Unlike the peer, hasten
// checks the contents: a 64-digit etag is the SHA-256 of the file, a 40-digit one its Git blob SHA-1. HTTP needs
// libcurl.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::hub {

struct DownloadOptions {
  std::string subfolder = {};       ///< put before the file's name
  std::string repo_type = "model";  ///< "model", "dataset" or "space"
  std::string revision = "main";    ///< branch, tag or commit
  std::string cache_dir = {};       ///< "": HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub
  std::string local_dir = {};       ///< if given, the file goes there and not into the cache
  bool force_download = false;      ///< download although the cache has the file
  std::string token = {};           ///< "": HF_TOKEN, else the file that huggingface-cli login wrote
  bool local_files_only = false;    ///< use the cache alone
  double etag_timeout_s = 10;       ///< for the request about the file's identity; HF_HUB_ETAG_TIMEOUT if set
  std::string endpoint = {};        ///< "": HF_ENDPOINT, else https://huggingface.co
};

/// Downloads one file unless the cache has it, and returns its path. `repo` is "org/name". An unreachable server is no
/// error if the cache has the revision. Processes of one host that request the same file download it once.
/// Blocks: on the network. Throws: UsageError for an unknown repository, revision or file, a gated one, or a file that
/// the cache lacks offline; CommError if the server cannot be reached; DataError for contents of another hash or size,
/// of which nothing stays visible.
std::string download(const std::string& repo, const std::string& file, const DownloadOptions& options = {},
                     const Environment& environment = Environment::current());

struct SnapshotOptions {
  DownloadOptions download = {};
  std::vector<std::string> allow_patterns = {};  ///< shell patterns ("*.safetensors"); empty: all files
  std::vector<std::string> ignore_patterns = {};
  size_t num_threads = 8;
};

/// Downloads all files of a revision that the patterns select, and returns the folder of the snapshot.
/// Blocks: on the network. Throws: as download.
std::string snapshot(const std::string& repo, const SnapshotOptions& options = {},
                     const Environment& environment = Environment::current());

/// Returns the paths of all files of a revision.
/// Blocks: on the network. Throws: as download; CommError also where only the cache could answer.
std::vector<std::string> list_files(const std::string& repo, const DownloadOptions& options = {},
                                    const Environment& environment = Environment::current());

struct FilePart {
  std::string bytes = {};
  uint64_t file_bytes = 0;  ///< of the whole file
};

/// Reads up to `count` bytes of a file from `begin` on by a range request. It does not touch the cache. From a server
/// without ranges, bytes behind the part are not fetched.
/// Blocks: on the network. Throws: as download.
FilePart read_part(const std::string& repo, const std::string& file, uint64_t begin, uint64_t count,
                   const DownloadOptions& options = {}, const Environment& environment = Environment::current());

/// Returns the root of the cache that this environment names.
std::string cache_root(const Environment& environment);

}  // namespace hasten::hub
