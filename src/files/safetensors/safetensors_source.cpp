// Whole tensors and parts of tensors in safetensors files; see safetensors_source.h.
#include "hasten/files/safetensors/safetensors_source.h"

#include <algorithm>
#include <map>

#include "files/base/origin.h"
#include "files/base/pieces.h"
#include "hasten/core/value.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::files {
namespace {

constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";

/// Returns name -> offsets of the parts that this file holds.
std::map<std::string, std::vector<int64_t>> offsets_of(const std::string& path, const std::string& json) {
  std::map<std::string, std::vector<int64_t>> offsets;
  const core::Value parsed = core::Value::parse_json(json, path);
  if (!parsed.is_map()) fail_data(path, "its ", kShardingInfo, " is no JSON object. Get the file again.");
  for (const auto& [name, part] : parsed.as_map()) {
    const core::Value* saved = part.find("saved_offsets");
    if (saved == nullptr || !saved->is_list())
      fail_data(path, "its ", kShardingInfo, " has no 'saved_offsets' for '", name, "'.");
    auto& list = offsets[name];
    for (const core::Value& offset : saved->as_list()) {
      if (!offset.is_int() || offset.as_int() < 0)
        fail_data(path, "its ", kShardingInfo, " has an offset of '", name, "' that is no whole number.");
      list.push_back(offset.as_int());
    }
  }
  return offsets;
}

struct Parts {
  TensorInfo info = {};
  std::vector<FilePiece> pieces = {};
};

void add_file(const std::string& path, const std::string& file, std::vector<Parts>& all,
              std::map<std::string, size_t>& index) {
  const SafetensorsHeader header = read_safetensors_header(file);
  const auto handle = SourceFile::open(file);
  const std::string* json = header.find_metadata(kShardingInfo);
  const auto offsets = json == nullptr ? std::map<std::string, std::vector<int64_t>>() : offsets_of(file, *json);
  for (const SafetensorsEntry& entry : header.entries) {
    Box box = whole_box(entry.info.shape);
    if (const auto found = offsets.find(entry.info.name); found != offsets.end()) {
      if (found->second.size() != box.size.size()) {
        fail_data(file, "tensor '", entry.info.name, "' has ", box.size.size(), " dimensions and ",
                  found->second.size(), " saved offsets.");
      }
      box.offset = found->second;
    }
    const auto [at, fresh] = index.emplace(entry.info.name, all.size());
    if (fresh) all.push_back({.info = {entry.info.name, entry.info.dtype, std::vector<int64_t>(box.size.size(), 0)}});
    Parts& parts = all[at->second];
    if (parts.info.shape.size() != box.size.size() || parts.info.dtype != entry.info.dtype) {
      fail_data(path, "the parts of tensor '", entry.info.name, "' differ in dtype or number of dimensions.");
    }
    for (size_t d = 0; d < box.size.size(); ++d) {
      int64_t end = 0;
      if (__builtin_add_overflow(box.offset[d], box.size[d], &end))
        fail_data(file, "tensor '", entry.info.name, "' has a part beyond all sizes.");
      parts.info.shape[d] = std::max(parts.info.shape[d], end);
    }
    parts.pieces.push_back({handle, header.body_offset + entry.begin, std::move(box)});
  }
}

}  // namespace

TensorSourcePtr open_safetensors(const std::string& path, const std::vector<std::string>& files) {
  auto source = std::make_shared<PieceSource>(path, "safetensors");
  for (const std::string& file : files) {
    const SafetensorsHeader header = read_safetensors_header(file);
    const auto handle = SourceFile::open(file);
    for (const SafetensorsEntry& entry : header.entries) {
      source->add_tensor(entry.info, {{handle, header.body_offset + entry.begin, whole_box(entry.info.shape)}});
    }
  }
  return source;
}

TensorSourcePtr open_sharded_safetensors(const std::string& path, const std::vector<std::string>& files) {
  std::vector<Parts> all;
  std::map<std::string, size_t> index;
  for (const std::string& file : files) add_file(path, file, all, index);
  auto source = std::make_shared<PieceSource>(path, "safetensors shards");
  for (Parts& parts : all) source->add_tensor(std::move(parts.info), std::move(parts.pieces));
  return source;
}

bool has_sharding_info(const std::string& file) {
  return read_safetensors_header(file).find_metadata(kShardingInfo) != nullptr;
}

}  // namespace hasten::files
