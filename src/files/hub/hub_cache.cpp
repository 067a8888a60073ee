// Names and links of the cache; see hub_cache.h.
#include "files/hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "files/base/posix_file.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"

namespace hasten::hub {
namespace {

namespace fs = std::filesystem;

std::string folder_name(std::string repo, const std::string& repo_type) {
  std::string name = repo_type + "s--";
  for (const char c : repo) {
    if (c == '/') {
      name += "--";
    } else {
      name += c;
    }
  }
  return name;
}

/// Writes a small file by way of a temporary name.
void write_text(const std::string& path, const std::string& words) {
  fs::create_directories(fs::path(path).parent_path());
  const std::string temporary = path + ".tmp-" + files::new_save_id();
  files::write_file(files::real_disk(), temporary, words);
  files::real_disk().rename(temporary, path, files::Rename::kReplace);
}

}  // namespace

bool is_commit(const std::string& revision) {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

RepoCache::RepoCache(std::string root, const std::string& repo, const std::string& repo_type)
    : root_(std::move(root)), name_(folder_name(repo, repo_type)), folder_(root_ + "/" + name_) {}

std::optional<std::string> RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const std::string path = folder_ + "/refs/" + revision;
  if (!fs::is_regular_file(path)) return std::nullopt;
  std::string commit = files::read_small_file(path, 4096);
  commit.erase(std::min(commit.find_last_not_of(" \n\r\t") + 1, commit.size()));
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

void RepoCache::remember_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit || commit_of(revision) == commit) return;
  write_text(folder_ + "/refs/" + revision, commit);
}

void RepoCache::remember_missing(const std::string& commit, const std::string& file) const {
  write_text(folder_ + "/.no_exist/" + commit + "/" + file, "");
}

void RepoCache::point(const std::string& commit, const std::string& file, const std::string& etag,
                      bool symlinks) const {
  const fs::path pointer = this->pointer(commit, file);
  fs::create_directories(pointer.parent_path());
  const std::string temporary = pointer.string() + ".tmp-" + files::new_save_id();
  const fs::path target = fs::path(blob(etag)).lexically_relative(pointer.parent_path());
  std::error_code error;
  if (symlinks) fs::create_symlink(target, temporary, error);
  if (!symlinks || error) fs::copy_file(blob(etag), temporary);
  files::real_disk().rename(temporary, pointer.string(), files::Rename::kReplace);
}

void RepoCache::make_folders() const {
  for (const char* folder : {"/blobs", "/refs", "/snapshots"}) fs::create_directories(folder_ + folder);
  const std::string tag = root_ + "/CACHEDIR.TAG";
  if (!fs::exists(tag)) {
    write_text(tag, "Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag.\n");
  }
}

LockFile::LockFile(const std::string& path) {
  fs::create_directories(fs::path(path).parent_path());
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw files::DiskError("open the lock", path, errno);
  while (flock(descriptor_, LOCK_EX) != 0) {
    if (errno != EINTR) {
      const int code = errno;
      ::close(descriptor_);
      throw files::DiskError("lock", path, code);
    }
  }
}

LockFile::~LockFile() {
  ::close(descriptor_);
}

}  // namespace hasten::hub
