// The real calls; see disk.h.
#include "hasten/files/disk/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "files/base/origin.h"

namespace hasten::files {

namespace {

// Returns a sentence on what mends the system's error, "" where nothing is known.
const char* remedy_of(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return " Make room, or choose another folder.";
    case EACCES:
    case EPERM:
    case EROFS:
      return " Choose a folder that can be written to.";
    case EMFILE:
    case ENFILE:
      return " Raise ulimit -n.";
    case EEXIST:
      return " Something else has its name: remove it, or choose another path.";
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return " Correct the path.";
    default:
      return "";
  }
}

}  // namespace

DiskError::DiskError(const std::string& what, const std::string& path, int code)
    : DataError(kOrigin, path, "cannot ", what, " '", path, "': ", std::strerror(code), ".", remedy_of(code)),
      code_(code) {}

namespace {

namespace fs = std::filesystem;

class RealFile : public DiskFile {
 public:
  RealFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~RealFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write_at(uint64_t offset, const void* bytes, size_t size) override {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t done = ::pwrite(descriptor_, from, std::min(size, size_t{1} << 30), static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && leave_direct()) continue;
      if (done < 0) throw DiskError("write", path_, errno);
      from += done;
      offset += static_cast<uint64_t>(done);
      size -= static_cast<size_t>(done);
    }
  }
  void truncate(uint64_t size) override {
    if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) throw DiskError("set the size of", path_, errno);
  }
  void sync() override {
    if (fsync(descriptor_) != 0) throw DiskError("sync", path_, errno);
  }
  void close() override {
    if (::close(std::exchange(descriptor_, -1)) != 0) throw DiskError("close", path_, errno);
  }

 private:
  /// Goes on through the page cache where the file system refuses an unaligned or any direct write.
  bool leave_direct() {
    const int flags = fcntl(descriptor_, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) == 0;
  }

  int descriptor_;
  std::string path_;
};

class RealDisk : public Disk {
 public:
  std::unique_ptr<DiskFile> create(const std::string& path, bool direct) override {
    return opened(path, O_WRONLY | O_CREAT | O_TRUNC, direct, "create");
  }
  std::unique_ptr<DiskFile> open(const std::string& path, bool direct) override {
    return opened(path, O_WRONLY, direct, "open");
  }
  void make_folder(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) != 0) throw DiskError("make the folder", path, errno);
  }
  void rename(const std::string& from, const std::string& to, Rename kind) override {
    const unsigned flags = kind == Rename::kNoReplace  ? RENAME_NOREPLACE
                           : kind == Rename::kExchange ? RENAME_EXCHANGE
                                                       : 0;
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0) {
      throw DiskError(text("rename '", from, "' to"), to, errno == ENOSYS ? EINVAL : errno);
    }
  }
  void link(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) != 0) throw DiskError(text("link '", from, "' to"), to, errno);
  }
  void unlink(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) throw DiskError("remove", path, errno);
  }
  void remove_folder(const std::string& path) override {
    if (rmdir(path.c_str()) != 0) throw DiskError("remove the folder", path, errno);
  }
  void sync_folder(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw DiskError("open the folder", path, errno);
    // Some network file systems cannot sync a folder and return EINVAL.
    const int error = fsync(descriptor) != 0 ? errno : 0;
    ::close(descriptor);
    if (error != 0 && error != EINVAL) throw DiskError("sync the folder", path, error);
  }

 private:
  static std::unique_ptr<DiskFile> opened(const std::string& path, int flags, bool direct, const char* what) {
    flags |= O_CLOEXEC;
    int descriptor = ::open(path.c_str(), direct ? flags | O_DIRECT : flags, 0666);
    if (descriptor < 0 && direct && errno == EINVAL) descriptor = ::open(path.c_str(), flags, 0666);
    if (descriptor < 0) throw DiskError(what, path, errno);
    return std::make_unique<RealFile>(descriptor, path);
  }
};

}  // namespace

Disk& real_disk() {
  static RealDisk disk;
  return disk;
}

void write_file(Disk& disk, const std::string& path, std::string_view bytes) {
  const auto file = disk.create(path);
  file->write_at(0, bytes.data(), bytes.size());
  file->sync();
  file->close();
}

void remove_tree(Disk& disk, const std::string& path) {
  const auto gone = [](const auto& call) {
    try {
      call();
    } catch (const DiskError& error) {
      if (error.code() != ENOENT) throw;
    }
  };
  const fs::file_status status = fs::symlink_status(path);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) {
    gone([&] { disk.unlink(path); });
    return;
  }
  std::vector<std::string> inside;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) inside.push_back(entry.path().string());
  for (const std::string& entry : inside) remove_tree(disk, entry);
  gone([&] { disk.remove_folder(path); });
}

}  // namespace hasten::files
