// Which bytes of which files go into which boxes: pure. Neighbouring ranges are merged into large reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/files/folders/manifest.h"

namespace hasten::files {

/// A box of a tensor that a rank needs.
struct WantedBox {
  std::string name = {};
  Box box = {};
};

/// The common part of a piece in a file and a wanted box.
struct LoadCopy {
  size_t want = 0;              ///< index of the wanted box
  size_t tensor = 0;            ///< index in Manifest::tensors (of the tensor that holds the values)
  size_t piece = 0;             ///< index of its piece
  uint64_t begin = 0, end = 0;  ///< bytes of the file that hold the common part, from its first byte to its last
  bool whole_piece = false;     ///< the read covers the piece, so that its hash can be checked
};

/// A read of [begin, end) of a file, and the pieces copied out of it.
struct LoadRead {
  size_t file = 0;
  uint64_t begin = 0, end = 0;
  std::vector<LoadCopy> copies = {};
};

struct LoadPlan {
  std::vector<LoadRead> reads = {};  ///< by file, then by position
  uint64_t bytes = 0;                ///< of all reads
};

/// Plans the reads for `want`. Ranges of one file with gaps of at most `max_gap` bytes become one read, of at most
/// `max_read` bytes unless a single range is larger.
/// Throws: UsageError if a wanted tensor is not in the manifest, or a box lies outside it.
LoadPlan plan_load(const Manifest& have, const std::vector<WantedBox>& want, uint64_t max_gap = 64 << 10,
                   uint64_t max_read = 8 << 20);

/// Copies what `read` holds to the wanted boxes. `bytes` are those of [read.begin, read.end); `targets[i]` is the
/// memory of want number i, contiguous.
void copy_read(const Manifest& have, const std::vector<WantedBox>& want, const LoadRead& read, const void* bytes,
               const std::vector<void*>& targets);

}  // namespace hasten::files
