// The descriptors that stay open, least recently read first; see source_file.h.
#include "files/base/source_file.h"

#include <sys/stat.h>

#include <list>
#include <mutex>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

struct OpenFiles {
  std::mutex mutex;
  std::list<std::pair<const SourceFile*, std::shared_ptr<const PosixFile>>> files;  // the one read last at the end
};

OpenFiles& open_files() {
  static OpenFiles all;
  return all;
}

void keep(OpenFiles& all, const SourceFile* of, std::shared_ptr<const PosixFile> file) {
  if (all.files.size() >= SourceFile::kMostOpen) all.files.pop_front();
  all.files.emplace_back(of, std::move(file));
}

}  // namespace

std::shared_ptr<const SourceFile> SourceFile::open(const std::string& path, int flags) {
  std::shared_ptr<SourceFile> file(new SourceFile(path, flags));
  const auto first = std::make_shared<const PosixFile>(PosixFile::open_to_read(path, flags));
  file->identity_ = identity_of(*first);
  OpenFiles& all = open_files();
  const std::lock_guard lock(all.mutex);
  keep(all, file.get(), first);
  return file;
}

SourceFile::~SourceFile() {
  OpenFiles& all = open_files();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.files, [this](const auto& entry) { return entry.first == this; });
}

SourceFile::Identity SourceFile::identity_of(const PosixFile& file) {
  struct stat status = {};
  if (fstat(file.descriptor(), &status) != 0) fail_data(file.path(), "it cannot be looked at.");
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim};
}

std::shared_ptr<const PosixFile> SourceFile::opened() const {
  OpenFiles& all = open_files();
  const std::lock_guard lock(all.mutex);
  for (auto entry = all.files.begin(); entry != all.files.end(); ++entry) {
    if (entry->first != this) continue;
    all.files.splice(all.files.end(), all.files, entry);
    return entry->second;
  }
  auto file = std::make_shared<const PosixFile>(PosixFile::open_to_read(path_, flags_));
  const Identity now = identity_of(*file);
  if (now.device != identity_.device || now.inode != identity_.inode || now.size != identity_.size ||
      now.changed.tv_sec != identity_.changed.tv_sec || now.changed.tv_nsec != identity_.changed.tv_nsec) {
    fail_data(path_, "it has changed since its header was read. Read the folder again when nothing writes to it.");
  }
  keep(all, this, file);
  return file;
}

}  // namespace hasten::files
