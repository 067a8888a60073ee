// Which checkpoints to delete: pure. Deleting itself is remove_durably (durable_folder.h), after the new one is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::files {

/// Returns N of "checkpoint_N", nothing for any other name ("checkpoint_best", "checkpoint_007x"). Numbers compare as
/// numbers.
std::optional<int64_t> checkpoint_number(std::string_view name);

struct Retention {
  std::optional<int64_t> total_limit = {};  ///< how many to keep; nothing: all
  int64_t keep_every = 0;                   ///< numbers that are multiples stay besides; 0: none
};

/// Returns the numbers to delete, oldest first. `complete` are the numbers of complete checkpoints in any order. The
/// newest is never among them.
std::vector<int64_t> to_delete(std::vector<int64_t> complete, const Retention& retention);

/// A folder checkpoint_N below a folder of checkpoints.
struct FoundCheckpoint {
  std::string path = {};
  int64_t number = 0;
  /// Why it is not complete; "" if it is. A folder of another program's form (Accelerate's) is complete if it has
  /// files.
  std::string problem = {};
};

/// Returns all checkpoint_N of a folder, by number. Temporary folders are not among them. Folders that a crash moved
/// aside are put back first (recover_folder). A missing folder has none.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder);

/// Returns true for a folder of hasten's own form (docs/formats/hasten.md) that has no manifest.json.
bool lost_manifest(const std::string& folder);

}  // namespace hasten::files
