// Index files; see hf_index.h.
#include "hasten/files/safetensors/hf_index.h"

#include <algorithm>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::files {

std::vector<std::string> HfIndex::files() const {
  std::vector<std::string> files;
  for (const auto& [name, file] : weight_map) files.push_back(file);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

HfIndex parse_hf_index(std::string_view json, const std::string& path) {
  refuse_stand_in(path, json);
  const core::Value parsed = core::Value::parse_json(json, path);
  if (!parsed.is_map()) fail_data(path, "an index must be a JSON object. Get the file again.");
  const core::Value* map = parsed.find("weight_map");
  HfIndex index;
  if (const core::Value* metadata = parsed.find("metadata"); map != nullptr && metadata != nullptr) {
    index.metadata = *metadata;
  }
  if (map == nullptr) map = &parsed;
  if (!map->is_map()) fail_data(path, "its 'weight_map' is no object. Get the file again.");
  for (const auto& [name, file] : map->as_map()) {
    if (!file.is_string()) {
      fail_data(path, "tensor '", name, "' names no file. Expected an index {\"weight_map\": {tensor: file}}.");
    }
    const std::string& text = file.as_string();
    if (text.empty() || text.front() == '/' || text == ".." || text.starts_with("../") ||
        text.find("/../") != std::string::npos || text.find('\0') != std::string::npos) {
      fail_data(path, "tensor '", name, "' names the file '", text, "', which is not inside the index's folder.");
    }
    index.weight_map.emplace_back(name, text);
  }
  return index;
}

HfIndex read_hf_index(const std::string& path) {
  return parse_hf_index(read_small_file(path), path);
}

std::string to_json(const HfIndex& index) {
  auto sorted = index.weight_map;
  std::sort(sorted.begin(), sorted.end());
  core::Value::Map map;
  for (auto& [name, file] : sorted) map.emplace_back(std::move(name), core::Value(std::move(file)));
  return core::Value::map({{"metadata", index.metadata}, {"weight_map", core::Value(std::move(map))}}).to_json(2) +
         "\n";
}

}  // namespace hasten::files
