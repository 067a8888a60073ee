// See path_search.h.
#include "hasten/core/path_search.h"

#include <unistd.h>

#include <filesystem>

#include "hasten/core/strings.h"

namespace hasten::core {

std::vector<std::string> path_folders(const Environment& environment) {
  auto folders = split(environment.text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':');
  for (std::string& folder : folders) {
    if (folder.empty()) folder = ".";
  }
  return folders;
}

bool is_executable(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::string find_on_path(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) return is_executable(name) ? name : "";
  for (const std::string& folder : path_folders(environment)) {
    const std::string path = folder + "/" + name;
    if (is_executable(path)) return path;
  }
  return "";
}

}  // namespace hasten::core
