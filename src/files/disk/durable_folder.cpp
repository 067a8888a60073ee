// The protocol of appearing by rename; see durable_folder.h.
#include "hasten/files/disk/durable_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/core/hash.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

std::string dot_name(const std::string& path, std::string_view kind, std::string_view save_id) {
  const fs::path whole(path);
  return (whole.parent_path() / text(".", whole.filename().string(), ".", kind, "-", save_id)).string();
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

bool is_there(const std::string& path) {
  return fs::symlink_status(path).type() != fs::file_type::not_found;
}

/// Makes `path` and the folders above it, each synced into the one above.
void make_folders(Disk& disk, const std::string& path) {
  if (path.empty() || fs::is_directory(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_folders(disk, parent);
  try {
    disk.make_folder(path);
  } catch (const DiskError& error) {
    if (error.code() != EEXIST || !fs::is_directory(path)) throw;
    return;
  }
  disk.sync_folder(parent);
}

/// Links or copies `from` to `to`, folders with all in them.
void carry(Disk& disk, const fs::path& from, const fs::path& to, bool copy) {
  const fs::file_status status = fs::symlink_status(from);
  if (fs::is_directory(status)) {
    if (!is_there(to.string())) disk.make_folder(to.string());
    for (const auto& entry : fs::directory_iterator(from))
      carry(disk, entry.path(), to / entry.path().filename(), copy);
    disk.sync_folder(to.string());
    return;
  }
  if (fs::is_symlink(status)) {
    fs::create_symlink(fs::read_symlink(from), to);
    return;
  }
  if (!copy) {
    try {
      disk.link(from.string(), to.string());
      return;
    } catch (const DiskError& error) {
      if (error.code() != EXDEV && error.code() != EPERM && error.code() != EMLINK && error.code() != ENOTSUP) throw;
    }
  }
  const PosixFile source = PosixFile::open_to_read(from.string());
  const auto target = disk.create(to.string());
  std::string chunk;
  for (uint64_t at = 0, size = source.size(); at < size; at += chunk.size()) {
    chunk.resize(std::min<uint64_t>(size - at, 8 << 20));
    source.read_at(at, chunk.data(), chunk.size());
    target->write_at(at, chunk.data(), chunk.size());
  }
  target->sync();
  target->close();
}

void carry_over(Disk& disk, const std::string& old, const std::string& temporary, const CommitOptions& options) {
  if (!options.is_replaced) return;
  bool carried = false;
  for (const auto& entry : fs::directory_iterator(old)) {
    const std::string name = entry.path().filename().string();
    const fs::path target = fs::path(temporary) / name;
    if (options.is_replaced(name) || is_there(target.string())) continue;
    carry(disk, entry.path(), target, false);
    carried = true;
  }
  if (carried) disk.sync_folder(temporary);
}

/// Returns the id at the end of ".NAME.tmp-ID", "" if `temporary` has another form.
std::string id_of(const std::string& temporary) {
  const std::string name = fs::path(temporary).filename().string();
  const size_t dash = name.rfind('-');
  return dash == std::string::npos ? std::string() : name.substr(dash + 1);
}

/// Moves the folder at `path` to `aside`, by copying where it cannot move (a lower layer of an overlay).
void move_aside(Disk& disk, const std::string& path, const std::string& aside) {
  try {
    disk.rename(path, aside, Rename::kReplace);
  } catch (const DiskError& error) {
    if (error.code() != EXDEV) throw;
    carry(disk, path, aside, true);
    disk.sync_folder(parent_of(path));
    remove_tree(disk, path);
  }
}

void replace_folder(Disk& disk, const std::string& temporary, const std::string& path, const std::string& parent) {
  const std::string aside = dot_name(path, "old", id_of(temporary));
  try {
    disk.rename(temporary, path, Rename::kExchange);
    disk.sync_folder(parent);
    disk.rename(temporary, aside, Rename::kReplace);
  } catch (const DiskError& error) {
    if (error.code() != EINVAL && error.code() != EXDEV) throw;
    move_aside(disk, path, aside);
    disk.sync_folder(parent);
    disk.rename(temporary, path, Rename::kReplace);
    disk.sync_folder(parent);
  }
  remove_tree(disk, aside);
}

/// A folder ".NAME.KIND-ID": its parts, empty if the name has another form.
struct DotName {
  std::string name = {}, kind = {}, id = {};
};

DotName parse_dot_name(const std::string& file) {
  const size_t dash = file.rfind('-');
  if (!file.starts_with('.') || dash == std::string::npos) return {};
  const size_t dot = file.rfind('.', dash);
  if (dot == 0 || dot == std::string::npos) return {};
  DotName parts{file.substr(1, dot - 1), file.substr(dot + 1, dash - dot - 1), file.substr(dash + 1)};
  const bool ours = (parts.kind == "tmp" || parts.kind == "old") && !parts.id.empty() &&
                    parts.id.find_first_not_of("0123456789abcdef") == std::string::npos;
  return ours ? parts : DotName{};
}

/// Returns the time of the youngest change to the folder or a file in it.
fs::file_time_type last_change(const fs::path& folder) {
  std::error_code error;
  fs::file_time_type latest = fs::last_write_time(folder, error);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const auto time = fs::last_write_time(entry.path(), gone);
    if (!gone) latest = std::max(latest, time);
  }
  return latest;
}

}  // namespace

std::string new_save_id() {
  return core::hex_digits(core::random_bytes(8));
}

std::string resolved_folder(const std::string& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  for (int hops = 0; fs::is_symlink(fs::symlink_status(whole)); ++hops) {
    if (hops == 40) throw UsageError(kOrigin, "'", path, "' is a loop of symbolic links. Give another path.");
    const fs::path target = fs::read_symlink(whole);
    whole = (target.is_absolute() ? target : whole.parent_path() / target).lexically_normal();
    if (!whole.has_filename()) whole = whole.parent_path();
  }
  return whole.string();
}

std::string temporary_folder_of(const std::string& path, std::string_view save_id) {
  return dot_name(path, "tmp", save_id);
}

std::string make_temporary_folder(Disk& disk, const std::string& path, std::string_view save_id) {
  if (is_there(path) && !fs::is_directory(path)) {
    throw UsageError(kOrigin, "'", path,
                     "' is a file, expected the path of a folder. Give another path, or remove the file.");
  }
  make_folders(disk, parent_of(path));
  const std::string temporary = temporary_folder_of(path, save_id);
  disk.make_folder(temporary);
  return temporary;
}

void commit_folder(Disk& disk, const std::string& temporary, const std::string& path, const CommitOptions& options) {
  const std::string parent = parent_of(path);
  disk.sync_folder(temporary);
  if (!is_there(path)) {
    try {
      disk.rename(temporary, path, Rename::kNoReplace);
      disk.sync_folder(parent);
      return;
    } catch (const DiskError& error) {
      if (error.code() != EEXIST && error.code() != EINVAL) throw;
      if (error.code() == EINVAL && !is_there(path)) {
        disk.rename(temporary, path, Rename::kReplace);
        disk.sync_folder(parent);
        return;
      }
    }
  }
  if (!fs::is_directory(path)) throw DiskError("replace by a folder", path, ENOTDIR);
  carry_over(disk, path, temporary, options);
  replace_folder(disk, temporary, path, parent);
}

void remove_durably(Disk& disk, const std::string& path) {
  if (!is_there(path)) return;
  const std::string aside = dot_name(path, "tmp", new_save_id());
  try {
    disk.rename(path, aside, Rename::kReplace);
  } catch (const DiskError& error) {
    if (error.code() != EXDEV) throw;
    remove_tree(disk, path);  // a lower layer of an overlay does not move
    return;
  }
  disk.sync_folder(parent_of(path));
  remove_tree(disk, aside);
}

bool recover_folder(Disk& disk, const std::string& path) {
  const std::string parent = parent_of(path);
  if (is_there(path) || !fs::is_directory(parent)) return false;
  const std::string name = fs::path(path).filename().string();
  for (const auto& entry : fs::directory_iterator(parent)) {
    const DotName parts = parse_dot_name(entry.path().filename().string());
    if (parts.name != name || parts.kind != "old") continue;
    disk.rename(entry.path().string(), path, Rename::kReplace);
    disk.sync_folder(parent);
    return true;
  }
  return false;
}

std::vector<std::string> remove_leftovers(Disk& disk, const std::string& parent, std::chrono::seconds age,
                                          const std::vector<std::string>& keep_ids) {
  std::vector<std::string> removed;
  if (!fs::is_directory(parent)) return removed;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(parent)) {
    const DotName parts = parse_dot_name(entry.path().filename().string());
    const bool kept = std::find(keep_ids.begin(), keep_ids.end(), parts.id) != keep_ids.end();
    if (!parts.name.empty() && !kept && fs::is_directory(entry.symlink_status())) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) {
    if (fs::file_time_type::clock::now() - last_change(path) < age) continue;
    const DotName parts = parse_dot_name(path.filename().string());
    if (parts.kind == "old" && recover_folder(disk, (path.parent_path() / parts.name).string())) continue;
    remove_tree(disk, path.string());
    removed.push_back(path.filename().string());
  }
  return removed;
}

FolderLock::FolderLock(const std::string& folder, bool takeover) : path_((fs::path(folder) / ".hasten.lock").string()) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw DiskError("make the lock file", path_, errno);
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && !takeover) {
    char other[256] = {};
    const ssize_t size = pread(descriptor_, other, sizeof other - 1, 0);
    ::close(descriptor_);
    throw UsageError(kOrigin, "another run writes to '", folder, "' (", size > 0 ? other : "unknown process",
                     "). Wait until it ends, or give this run another project_dir.");
  }
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string owner = text("process ", getpid(), " on ", host);
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, owner.data(), owner.size(), 0) < 0) {
    const int error = errno;
    ::close(descriptor_);
    throw DiskError("write the lock file", path_, error);
  }
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace hasten::files
