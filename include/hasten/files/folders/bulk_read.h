// Reads many boxes of a saved state at once. Reads are large and pass the page cache. Boxes are hashed while they are
// copied, and shared by the ranks of a host.
//
// Boxes are cut to parts of at most 8 MiB, planned (load_plan.h), and read by a few threads ahead of the copying. A
// range in the page cache is copied from there; any other is read with O_DIRECT. With a BulkShare each of `count` ranks
// reads every count-th part, and `gather` exchanges the parts. So a file is read once for any number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hasten/files/folders/load_plan.h"
#include "hasten/files/folders/manifest.h"

namespace hasten::files {

/// A box that is wanted, and where its elements go.
struct BulkTarget {
  WantedBox want = {};
  /// Returns contiguous memory for the box; called once, before the first element is copied.
  std::function<void*()> begin = {};
  /// Called once the box is complete; may be empty.
  std::function<void()> end = {};
};

/// One of the ranks that read together. All of them give the same targets in the same order.
struct BulkShare {
  int index = 0;
  int count = 1;
  /// Fills `parts`, `count` parts of `part_bytes` each, of which number `index` is there. Collective over the ranks.
  std::function<void(char* parts, size_t part_bytes)> gather = {};
};

struct BulkReadOptions {
  BulkShare share = {};
  /// Compares the hash of each piece that is read whole with the manifest's. Ranks that share the reads share the
  /// pieces.
  bool verify = true;
  size_t num_threads = 2;
};

struct BulkReport {
  /// Bytes that this rank has read from disk or page cache.
  uint64_t bytes_read = 0;
  /// Bytes among these that came past the page cache.
  uint64_t bytes_direct = 0;
  uint64_t pieces_verified = 0;
  /// A message for each damaged piece. The values have been copied all the same.
  std::vector<std::string> damaged = {};
};

/// Reads all targets from the files of `folder`. Memory: (2 + num_threads) parts of 8 MiB for each rank that shares.
/// Collective: yes with a share, else no. Blocks: on the disk. Throws: UsageError as plan_load; DataError if a file
/// cannot be read, after the collective calls of the round have been made.
BulkReport read_boxes(const Manifest& manifest, const std::string& folder, const std::vector<BulkTarget>& targets,
                      const BulkReadOptions& options = {});

/// Returns a manifest, without hashes, of a source's tensors that lie whole and contiguous in files, so that read_boxes
/// reads them. File names are absolute paths. Names of the others are added to `left_out`.
/// Throws: DataError if a file is gone.
Manifest manifest_of_source(const TensorSource& source, std::vector<std::string>& left_out);

}  // namespace hasten::files
