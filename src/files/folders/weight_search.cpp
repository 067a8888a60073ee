// The search of load_checkpoint_in_model, safetensors first; see weight_search.h.
#include "files/folders/weight_search.h"

#include <algorithm>
#include <filesystem>

#include "files/base/origin.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/safetensors/hf_index.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

void add_index(WeightFiles& found, const fs::path& index) {
  found.index = index.string();
  std::vector<std::string> missing;
  const HfIndex read = read_hf_index(found.index);
  const std::vector<std::string> files = read.files();
  for (const std::string& file : files) {
    const fs::path path = index.parent_path() / file;
    found.files.push_back(path.string());
    if (!fs::exists(path)) missing.push_back(file);
  }
  for (const auto& [name, file] : read.weight_map) {
    const auto at = std::lower_bound(files.begin(), files.end(), file);
    found.tensors.emplace_back(name, static_cast<size_t>(at - files.begin()));
  }
  if (!missing.empty()) {
    throw DataError(kOrigin, found.index, "'", found.index, "' names ", missing.size(), " file",
                    missing.size() == 1 ? "" : "s", " that ", missing.size() == 1 ? "is" : "are",
                    " not there: ", join(missing), ". Get the folder again.");
  }
}

// A folder of shards with an index of another name beside the usual ones: which of them is meant is not guessed.
// Indexes of both forms (safetensors is read, with a remark) and of variants (model.fp16.safetensors.index.json) may be
// in one folder.
void require_one_index(const fs::path& folder, const std::vector<std::string>& indexes) {
  const auto is_usual = [](const std::string& name) {
    return name.starts_with("model.") || name.starts_with("pytorch_model.");
  };
  if (fs::exists(folder / kManifestFile) || std::all_of(indexes.begin(), indexes.end(), is_usual)) return;
  throw UsageError(kOrigin, "'", folder.string(), "' has several indexes (", join(indexes),
                   "); expected one. Give the path of the index that is meant.");
}

// An index.json of files; that of an offload folder has a mapping an entry.
bool is_flat_index(const fs::path& path) {
  try {
    return !read_hf_index(path.string()).weight_map.empty();
  } catch (const DataError&) {
    return false;
  }
}

WeightFiles in_folder(const fs::path& folder) {
  std::vector<std::string> indexes, names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
    if (names.back().ends_with(".index.json")) indexes.push_back(names.back());
  }
  std::sort(indexes.begin(), indexes.end());
  if (indexes.empty() && std::find(names.begin(), names.end(), "index.json") != names.end() &&
      is_flat_index(folder / "index.json")) {
    indexes.emplace_back("index.json");
  }
  const auto there = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  WeightFiles found;
  const bool safe = there("model.safetensors") || there("model.safetensors.index.json");
  if (safe && (there("pytorch_model.bin") || there("pytorch_model.bin.index.json"))) {
    found.remarks.push_back(
        text("'", folder.string(), "' has weights as safetensors and as pytorch_model.bin; safetensors is read."));
  }
  for (const char* stem : {"model.safetensors", "pytorch_model.bin"}) {
    const std::string index = std::string(stem) + ".index.json";
    if (there(stem)) {
      found.files = {(folder / stem).string()};
      if (there(index))
        found.remarks.push_back(text("'", (folder / stem).string(), "' is read, and the index beside it is not."));
      return found;
    }
    if (there(index)) {
      require_one_index(folder, indexes);
      add_index(found, folder / index);
      return found;
    }
  }
  if (indexes.size() > 1) {
    throw UsageError(kOrigin, "'", folder.string(), "' has several indexes (", join(indexes),
                     ") and no model.safetensors; expected one. Give the path of the index that is meant.");
  }
  if (indexes.empty()) {
    throw UsageError(kOrigin, "'", folder.string(),
                     "' holds no weights: expected model.safetensors, pytorch_model.bin or an *.index.json",
                     names.empty() ? "; it is empty." : ". Give the path of the file that is meant.");
  }
  add_index(found, folder / indexes.front());
  return found;
}

}  // namespace

WeightFiles find_weights(const std::string& path) {
  if (!fs::exists(path)) throw UsageError(kOrigin, "there is no file or folder '", path, "'. Correct the path.");
  if (fs::is_directory(path)) return in_folder(path);
  WeightFiles found;
  if (path.ends_with(".json")) {
    add_index(found, path);
  } else {
    found.files = {path};
  }
  return found;
}

}  // namespace hasten::files
