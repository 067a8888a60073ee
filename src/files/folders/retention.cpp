// Numbers in names, and what stays; see retention.h.
#include "hasten/files/folders/retention.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "files/base/origin.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/folders/manifest.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

std::string problem_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kManifestFile, error)) {
    if (lost_manifest(folder.string())) return "its manifest.json is missing";
    bool known = false;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      known = known || name.starts_with("model") || name.starts_with("pytorch_model") ||
              name.starts_with("optimizer") || name == "latest";
    }
    return known ? "" : "it has no manifest.json";
  }
  try {
    check_files(read_manifest(folder.string()), folder.string());
    return "";
  } catch (const DataError& failure) {
    return failure.what();
  }
}

/// Puts back folders moved aside by a crash: ".checkpoint_7.old-ID" without checkpoint_7.
void recover_all(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.find(".old-");
    if (name.starts_with('.') && end != std::string::npos) names.push_back(name.substr(1, end - 1));
  }
  for (const std::string& name : names) {
    if (checkpoint_number(name)) recover_folder(real_disk(), (fs::path(folder) / name).string());
  }
}

}  // namespace

std::optional<int64_t> checkpoint_number(std::string_view name) {
  constexpr std::string_view kPrefix = "checkpoint_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || name.empty() || number < 0) return std::nullopt;
  return number;
}

std::vector<int64_t> to_delete(std::vector<int64_t> complete, const Retention& retention) {
  std::vector<int64_t> deleted;
  if (!retention.total_limit) return deleted;
  std::sort(complete.begin(), complete.end());
  complete.erase(std::unique(complete.begin(), complete.end()), complete.end());
  const auto keep = static_cast<size_t>(std::max<int64_t>(*retention.total_limit, 1));
  for (size_t i = 0; i + keep < complete.size(); ++i) {
    if (retention.keep_every > 0 && complete[i] % retention.keep_every == 0) continue;
    deleted.push_back(complete[i]);
  }
  return deleted;
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  if (!fs::is_directory(folder)) return found;
  recover_all(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto number = checkpoint_number(entry.path().filename().string());
    if (number && entry.is_directory()) found.push_back({entry.path().string(), *number, problem_of(entry.path())});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

bool lost_manifest(const std::string& folder) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / kManifestFile, error)) return false;
  const fs::directory_iterator entries(folder, error);
  return std::any_of(begin(entries), end(entries), [](const auto& entry) {
    const std::string name = entry.path().filename().string();
    return name.starts_with("state") && name.ends_with(".safetensors");
  });
}

}  // namespace hasten::files
