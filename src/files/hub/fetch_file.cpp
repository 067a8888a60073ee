// See fetch_file.h.
#include "hasten/files/hub/fetch_file.h"

#include "files/hub/download.h"
#include "files/hub/hub_cache.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

std::string last_part(const std::string& source) {
  const auto name = is_address(source) ? source.substr(0, source.find_first_of("?#")) : source;
  return name.substr(name.find_last_of('/') + 1);
}

void copy_checked(const fs::path& from, const fs::path& to, const std::string& sha256) {
  if (!sha256.empty()) check_file_hash(from, sha256);
  std::error_code failed;
  fs::copy_file(from, to, failed);
  if (failed) {
    throw DataError(Origin{"files"}, from.string(), "cannot copy ", from.string(), " to ", to.string(), ": ",
                    failed.message(), ". Check the path, or free space.");
  }
}

}  // namespace

fs::path fetch_file(const std::string& source, const FetchOptions& options) {
  if (options.into.empty()) throw UsageError(Origin{"files"}, "fetch_file without a folder; set FetchOptions::into.");
  const auto name = options.name.empty() ? last_part(source) : options.name;
  if (name.empty() || name.find('/') != std::string::npos) {
    throw UsageError(Origin{"files"}, "'", source, "' gives the file the name '", name,
                     "'; expected a name without '/'. Set FetchOptions::name.");
  }
  const auto sha256 = wanted_sha256(options.sha256, "fetch_file");
  const auto path = options.into / name;
  if (!options.force && fs::exists(path)) return path;
  fs::create_directories(options.into);
  const hub::LockFile lock((options.into / ("." + name + ".lock")).string());
  if (!options.force && fs::exists(path)) return path;

  const fs::path temporary = options.into / ("." + name + "." + new_save_id());
  const std::shared_ptr<void> leave(nullptr, [&](void*) {
    std::error_code gone;
    fs::remove(temporary, gone);
  });
  if (is_address(source)) {
    download(source, temporary, sha256, "fetch_file");
  } else {
    copy_checked(source, temporary, sha256);
  }
  real_disk().rename(temporary.string(), path.string(), Rename::kReplace);
  return path;
}

}  // namespace hasten::files
