// Splitting a state_dict over files, as huggingface_hub does it: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/files/safetensors/hf_index.h"

namespace hasten::files {

struct ShardTensor {
  std::string name = {};
  uint64_t bytes = 0;                   ///< of its storage
  std::optional<int64_t> storage = {};  ///< equal for tensors that share one storage; nothing: it shares none
};

struct ShardFile {
  std::string file = {};
  std::vector<std::string> names = {};  ///< in the order of the state_dict
};

struct ShardSplit {
  std::vector<ShardFile> files = {};  ///< empty for a state_dict without tensors
  uint64_t total_size = 0;            ///< bytes, shared storages counted once
  bool is_sharded() const noexcept { return files.size() > 1; }
  /// Returns the index that belongs beside several files.
  HfIndex index() const;
};

/// Splits tensors, in state_dict order, into files of at most `max_shard_bytes`. A larger tensor gets a file alone.
/// Tensors of one storage come into one file, and so do all tensors without elements. `pattern` holds "{suffix}", replaced by "-00001-of-00003", or by nothing
/// if there is one file.
ShardSplit split_into_shards(const std::vector<ShardTensor>& tensors, uint64_t max_shard_bytes,
                             std::string_view pattern = "model{suffix}.safetensors");

/// Returns the bytes of "5GB", "300 mb", "1e-3MB", "1_000KB": TB, GB, MB, KB in any case, powers of ten. The number is
/// one of Python's. Bare digits are bytes. A negative size counts as 0: every tensor gets a file alone.
/// Throws: UsageError for anything else.
uint64_t parse_shard_size(std::string_view size);

/// Returns true if an earlier save with `pattern` may have left `file`: the file without suffix, with a suffix of that
/// form, or the index.
bool is_shard_of(std::string_view file, std::string_view pattern);

}  // namespace hasten::files
