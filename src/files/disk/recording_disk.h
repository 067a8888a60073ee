// A disk that records every call and can fail at any of them, for tests of what a crash leaves behind.
//
// replay() builds, in another folder, a state that a crash may leave after the first calls of the log. Names that were
// not synced may be missing. Contents that were not synced may be old, torn or absent. The crash tests of LevelDB,
// SQLite and ALICE assume the same of file systems.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hasten/files/disk/disk.h"

namespace hasten::files {

struct DiskCall {
  enum class Kind {
    kCreate,
    kWrite,
    kTruncate,
    kSync,
    kMakeFolder,
    kRename,
    kLink,
    kUnlink,
    kRemoveFolder,
    kSyncFolder
  };
  Kind kind = Kind::kCreate;
  std::string path = {}, target = {};  ///< target: of a rename or link
  Rename rename = Rename::kReplace;
  uint64_t offset = 0;     ///< of a write; size of a truncate
  std::string bytes = {};  ///< of a write
};

class RecordingDisk : public Disk {
 public:
  explicit RecordingDisk(Disk& disk = real_disk()) : disk_(disk) {}

  /// Makes the call of this number (from 0) and all later ones fail with `code` (an errno value), or only that one.
  void fail_at(size_t call, int code, bool once = false);
  std::vector<DiskCall> calls() const;

  std::unique_ptr<DiskFile> create(const std::string& path, bool direct = false) override;
  std::unique_ptr<DiskFile> open(const std::string& path, bool direct = false) override;
  void make_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to, Rename kind) override;
  void link(const std::string& from, const std::string& to) override;
  void unlink(const std::string& path) override;
  void remove_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;

  /// Records a call. Throws: DiskError where it is to fail. For the files of this disk.
  void record(DiskCall call);

 private:
  Disk& disk_;
  mutable std::mutex mutex_;
  std::vector<DiskCall> calls_;
  size_t fail_at_ = SIZE_MAX;
  int code_ = 0;
  bool once_ = false;
};

struct CrashOptions {
  size_t calls = 0;  ///< how many calls of the log were made
  /// Returns a number in [0, n). Decides which unsynced calls are lost; empty: none is lost.
  std::function<uint64_t(uint64_t n)> choose = {};
};

/// Rebuilds below `to` what lay below `from` after a crash. Writes that no sync of their file follows within the calls
/// may be lost, or end torn at a multiple of 4096 bytes. In each folder, changes of names that no sync of the folder
/// follows may be lost from a chosen one on. A rename between two folders happens in both or neither. `from`'s state
/// before the log must have been copied to `to`.
void replay(const std::vector<DiskCall>& log, const std::string& from, const std::string& to,
            const CrashOptions& options);

}  // namespace hasten::files
