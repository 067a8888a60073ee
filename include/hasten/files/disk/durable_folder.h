// Folders that appear whole or not at all: written under a dot name, then renamed.
//
// A folder is built as `.NAME.tmp-ID` beside its place. commit_folder moves it there in one step and makes the step
// durable. A crash at any point leaves the old folder, the new one, or an old one under `.NAME.old-ID`, which
// recover_folder puts back. Temporary folders count for nothing and are removed later.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/files/disk/disk.h"

namespace hasten::files {

/// Returns 16 random hexadecimal digits.
std::string new_save_id();

/// Returns the real place of `path`: without a trailing slash, and where a symbolic link leads.
std::string resolved_folder(const std::string& path);

/// Returns "PARENT/.NAME.tmp-ID" for a folder "PARENT/NAME".
std::string temporary_folder_of(const std::string& path, std::string_view save_id);

/// Makes the temporary folder and, where missing, the folders above it. Returns its path.
/// Throws: UsageError if `path` is a file; DiskError.
std::string make_temporary_folder(Disk& disk, const std::string& path, std::string_view save_id);

struct CommitOptions {
  /// Returns true for a file name of the old folder that belongs to the save being replaced. Other files are carried
  /// over by hard link. Empty: nothing is carried over.
  std::function<bool(const std::string& name)> is_replaced = {};
};

/// Moves `temporary` to `path` and makes that durable. All files in it must have been synced. A folder already at
/// `path` is replaced in one step (RENAME_EXCHANGE), or where the file system has no such step, moved aside first.
/// Blocks: on the disk. Throws: DiskError; the old folder is then in place, or found by recover_folder.
void commit_folder(Disk& disk, const std::string& temporary, const std::string& path,
                   const CommitOptions& options = {});

/// Removes a folder so that no half of it is ever visible: it is renamed to a dot name first. A missing folder is no
/// error.
void remove_durably(Disk& disk, const std::string& path);

/// Puts back a folder that a crash left moved aside (`.NAME.old-ID` with nothing at `path`). Returns true if it did.
bool recover_folder(Disk& disk, const std::string& path);

/// Removes temporary folders and moved-aside ones in `parent` that nothing has written to for `age`, except those of
/// `keep_ids`. A moved-aside folder without its successor is put back instead. Returns the names removed.
std::vector<std::string> remove_leftovers(Disk& disk, const std::string& parent,
                                          std::chrono::seconds age = std::chrono::hours(1),
                                          const std::vector<std::string>& keep_ids = {});

/// Holds a lock file as long as this exists, so that two runs do not write into one project folder.
class FolderLock {
 public:
  /// Makes `FOLDER/.hasten.lock` with host and process id, and locks it. Throws: UsageError naming the other run,
  /// unless `takeover`; DataError if the file cannot be made.
  explicit FolderLock(const std::string& folder, bool takeover = false);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
  std::string path_;
};

}  // namespace hasten::files
