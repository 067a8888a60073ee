// The folders of huggingface_hub's cache; private to the room.
#pragma once

#include <optional>
#include <string>

namespace hasten::hub {

bool is_commit(const std::string& revision);

/// The cache of one repository: ROOT/models--org--name/{blobs, refs, snapshots, .no_exist}.
class RepoCache {
 public:
  RepoCache(std::string root, const std::string& repo, const std::string& repo_type);

  /// Returns the commit of a branch, a tag or a commit; nothing if the cache lacks it.
  std::optional<std::string> commit_of(const std::string& revision) const;
  void remember_ref(const std::string& revision, const std::string& commit) const;
  void remember_missing(const std::string& commit, const std::string& file) const;

  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
  std::string pointer(const std::string& commit, const std::string& file) const {
    return snapshot(commit) + "/" + file;
  }
  std::string blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  std::string lock(const std::string& etag) const { return root_ + "/.locks/" + name_ + "/" + etag + ".lock"; }

  /// Makes the snapshot's name a relative link to the blob. If links are off or impossible, it makes a copy.
  void point(const std::string& commit, const std::string& file, const std::string& etag, bool symlinks) const;
  /// Makes the folders and ROOT/CACHEDIR.TAG.
  void make_folders() const;

 private:
  std::string root_, name_, folder_;
};

/// Holds an exclusive lock on a file while it exists; waits for it.
class LockFile {
 public:
  explicit LockFile(const std::string& path);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  int descriptor_;
};

}  // namespace hasten::hub
