// The log, and what of it survives a crash; see recording_disk.h.
#include "files/disk/recording_disk.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

class RecordingFile : public DiskFile {
 public:
  RecordingFile(RecordingDisk& disk, std::unique_ptr<DiskFile> file, std::string path)
      : disk_(disk), file_(std::move(file)), path_(std::move(path)) {}
  void write_at(uint64_t offset, const void* bytes, size_t size) override {
    disk_.record({.kind = DiskCall::Kind::kWrite,
                  .path = path_,
                  .offset = offset,
                  .bytes = std::string(static_cast<const char*>(bytes), size)});
    file_->write_at(offset, bytes, size);
  }
  void truncate(uint64_t size) override {
    disk_.record({.kind = DiskCall::Kind::kTruncate, .path = path_, .offset = size});
    file_->truncate(size);
  }
  void sync() override {
    disk_.record({.kind = DiskCall::Kind::kSync, .path = path_});
    file_->sync();
  }
  void close() override { file_->close(); }

 private:
  RecordingDisk& disk_;
  std::unique_ptr<DiskFile> file_;
  std::string path_;
};

std::string folder_of(const std::string& path) {
  return fs::path(path).parent_path().string();
}

bool is_name_change(const DiskCall& call) {
  using Kind = DiskCall::Kind;
  return call.kind == Kind::kCreate || call.kind == Kind::kMakeFolder || call.kind == Kind::kRename ||
         call.kind == Kind::kLink || call.kind == Kind::kUnlink || call.kind == Kind::kRemoveFolder;
}

/// Follows a path through later renames, so that a sync of a file under its new name counts.
std::string current_path(const std::vector<DiskCall>& log, size_t from, size_t to, std::string path) {
  for (size_t i = from; i < to; ++i) {
    if (log[i].kind != DiskCall::Kind::kRename) continue;
    const auto under = [&](const std::string& root) { return path == root || path.starts_with(root + "/"); };
    if (under(log[i].path)) {
      path = log[i].target + path.substr(log[i].path.size());
    } else if (log[i].rename == Rename::kExchange && under(log[i].target)) {
      path = log[i].path + path.substr(log[i].target.size());
    }
  }
  return path;
}

bool synced_later(const std::vector<DiskCall>& log, size_t call, size_t count, DiskCall::Kind kind,
                  const std::string& path) {
  for (size_t i = call + 1; i < count; ++i) {
    if (log[i].kind == kind && log[i].path == current_path(log, call + 1, i, path)) return true;
  }
  return false;
}

/// Applies a call to the file system below `to`. Calls that a lost one made impossible do nothing.
void apply(const DiskCall& call, const std::function<std::string(const std::string&)>& moved) {
  using Kind = DiskCall::Kind;
  Disk& disk = real_disk();
  try {
    switch (call.kind) {
      case Kind::kCreate:
        disk.create(moved(call.path));
        break;
      case Kind::kWrite:
        disk.open(moved(call.path))->write_at(call.offset, call.bytes.data(), call.bytes.size());
        break;
      case Kind::kTruncate:
        disk.open(moved(call.path))->truncate(call.offset);
        break;
      case Kind::kMakeFolder:
        disk.make_folder(moved(call.path));
        break;
      case Kind::kRename:
        disk.rename(moved(call.path), moved(call.target), call.rename);
        break;
      case Kind::kLink:
        disk.link(moved(call.path), moved(call.target));
        break;
      case Kind::kUnlink:
        disk.unlink(moved(call.path));
        break;
      case Kind::kRemoveFolder:
        disk.remove_folder(moved(call.path));
        break;
      case Kind::kSync:
      case Kind::kSyncFolder:
        break;
    }
  } catch (const DiskError&) {
    // The call depends on one that the crash lost.
  }
}

}  // namespace

void RecordingDisk::fail_at(size_t call, int code, bool once) {
  const std::lock_guard lock(mutex_);
  fail_at_ = call;
  code_ = code;
  once_ = once;
}

std::vector<DiskCall> RecordingDisk::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void RecordingDisk::record(DiskCall call) {
  const std::lock_guard lock(mutex_);
  const size_t number = calls_.size();
  const bool fails = once_ ? number == fail_at_ : number >= fail_at_;
  const std::string path = call.path;
  calls_.push_back(std::move(call));
  if (!fails) return;
  if (once_) fail_at_ = SIZE_MAX;
  calls_.pop_back();
  throw DiskError("use", path, code_);
}

std::unique_ptr<DiskFile> RecordingDisk::create(const std::string& path, bool direct) {
  record({.kind = DiskCall::Kind::kCreate, .path = path});
  return std::make_unique<RecordingFile>(*this, disk_.create(path, direct), path);
}
std::unique_ptr<DiskFile> RecordingDisk::open(const std::string& path, bool direct) {
  return std::make_unique<RecordingFile>(*this, disk_.open(path, direct), path);
}
void RecordingDisk::make_folder(const std::string& path) {
  record({.kind = DiskCall::Kind::kMakeFolder, .path = path});
  disk_.make_folder(path);
}
void RecordingDisk::rename(const std::string& from, const std::string& to, Rename kind) {
  record({.kind = DiskCall::Kind::kRename, .path = from, .target = to, .rename = kind});
  try {
    disk_.rename(from, to, kind);
  } catch (const DiskError&) {
    const std::lock_guard lock(mutex_);
    calls_.pop_back();  // a refused rename changes nothing
    throw;
  }
}
void RecordingDisk::link(const std::string& from, const std::string& to) {
  record({.kind = DiskCall::Kind::kLink, .path = from, .target = to});
  disk_.link(from, to);
}
void RecordingDisk::unlink(const std::string& path) {
  record({.kind = DiskCall::Kind::kUnlink, .path = path});
  disk_.unlink(path);
}
void RecordingDisk::remove_folder(const std::string& path) {
  record({.kind = DiskCall::Kind::kRemoveFolder, .path = path});
  disk_.remove_folder(path);
}
void RecordingDisk::sync_folder(const std::string& path) {
  record({.kind = DiskCall::Kind::kSyncFolder, .path = path});
  disk_.sync_folder(path);
}

void replay(const std::vector<DiskCall>& log, const std::string& from, const std::string& to,
            const CrashOptions& options) {
  const size_t count = std::min(options.calls, log.size());
  const auto moved = [&](const std::string& path) {
    return path.starts_with(from) ? to + path.substr(from.size()) : path;
  };
  // Where the names of a folder stop to be durable: the first unsynced change that is lost takes all later ones with
  // it.
  std::map<std::string, size_t> lost_from;
  for (size_t i = 0; i < count && options.choose; ++i) {
    if (!is_name_change(log[i])) continue;
    for (const std::string& name :
         {log[i].path, log[i].kind == DiskCall::Kind::kRename ? log[i].target : log[i].path}) {
      const std::string parent = folder_of(name);
      if (lost_from.contains(parent) || synced_later(log, i, count, DiskCall::Kind::kSyncFolder, parent)) continue;
      if (options.choose(2) == 0) lost_from[parent] = i;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    DiskCall call = log[i];
    if (is_name_change(call)) {
      const auto lost = lost_from.find(folder_of(call.path));
      if (lost != lost_from.end() && i >= lost->second &&
          !synced_later(log, i, count, DiskCall::Kind::kSyncFolder, folder_of(call.path)))
        continue;
    }
    const bool content = call.kind == DiskCall::Kind::kWrite || call.kind == DiskCall::Kind::kTruncate;
    if (content && options.choose && !synced_later(log, i, count, DiskCall::Kind::kSync, call.path)) {
      const uint64_t fate = options.choose(3);
      if (fate == 0) continue;
      if (fate == 1)
        call.bytes.resize(std::min<uint64_t>(call.bytes.size(), options.choose(call.bytes.size() / 4096 + 1) * 4096));
    }
    apply(call, moved);
  }
}

}  // namespace hasten::files
