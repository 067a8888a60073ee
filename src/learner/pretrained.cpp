// See pretrained.h.
#include "hasten/learner/pretrained.h"

#include <algorithm>
#include <filesystem>

#include "hasten/core/error.h"
#include "hasten/files/hub/fetch_file.h"
#include "hasten/files/hub/hub.h"

namespace hasten::learner {

std::string pretrained_path(const std::string& source, const std::string& sha256, const Environment& environment) {
  if (source.starts_with("http://") || source.starts_with("https://")) {
    if (sha256.empty()) {
      throw UsageError({"learner"}, "the weights '", source,
                       "' are an address without a hash; expected the file's SHA-256 beside it. Set sha256.");
    }
    // The hash is in the name: another file behind the same address is another one here.
    const std::string name = source.substr(source.find_last_of('/') + 1);
    return files::fetch_file(source, {.sha256 = sha256,
                                      .into = std::filesystem::path(hub::cache_root(environment)) / "files",
                                      .name = sha256.substr(0, 16) + "_" + name.substr(0, name.find_first_of("?#"))})
        .string();
  }
  if (std::filesystem::exists(source)) return source;
  const bool is_repository = std::count(source.begin(), source.end(), '/') == 1 && !source.starts_with('/') &&
                             !source.starts_with('.') && !source.ends_with('/');
  if (!is_repository) {
    throw UsageError({"learner"}, "the weights '", source,
                     "' are no file or folder; expected one, an http(s) address with its hash, or \"org/name\" of a "
                     "hub. Check the path.");
  }
  return hub::snapshot(source, {.allow_patterns = {"*.safetensors", "*.bin", "*.pth", "*.json"}}, environment);
}

}  // namespace hasten::learner
