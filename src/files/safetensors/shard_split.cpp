// huggingface_hub's greedy split; see shard_split.h.
#include "hasten/files/safetensors/shard_split.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>
#include <unordered_map>

#include "files/base/origin.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"

namespace hasten::files {
namespace {

std::string with_suffix(std::string_view pattern, const std::string& suffix) {
  std::string name(pattern);
  const size_t at = name.find("{suffix}");
  if (at == std::string::npos) {
    throw UsageError(kOrigin, "the file name pattern '", pattern,
                     "' has no '{suffix}'. Write \"model{suffix}.safetensors\".");
  }
  return name.replace(at, 8, suffix);
}

std::string numbered(size_t i, size_t n) {
  char suffix[64];
  std::snprintf(suffix, sizeof suffix, "-%05zu-of-%05zu", i, n);
  return suffix;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

HfIndex ShardSplit::index() const {
  HfIndex index{.metadata = core::Value::map({{"total_size", total_size}})};
  for (const ShardFile& file : files) {
    for (const std::string& name : file.names) index.weight_map.emplace_back(name, file.file);
  }
  return index;
}

ShardSplit split_into_shards(const std::vector<ShardTensor>& tensors, uint64_t max_shard_bytes,
                             std::string_view pattern) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> open;
  uint64_t open_bytes = 0;
  std::unordered_map<int64_t, size_t> first_of_storage;
  std::optional<size_t> first_empty;  // tensors without elements have one storage, as their address 0 says there
  std::unordered_map<size_t, std::vector<size_t>> sharing;  // further tensors of a storage, by its first
  ShardSplit split;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShardTensor& tensor = tensors[i];
    if (tensor.bytes == 0 || tensor.storage) {
      const size_t first =
          tensor.bytes == 0 ? first_empty.value_or(i) : first_of_storage.emplace(*tensor.storage, i).first->second;
      if (tensor.bytes == 0) first_empty = first;
      if (first != i) {
        sharing[first].push_back(i);
        continue;
      }
    }
    split.total_size += tensor.bytes;
    if (tensor.bytes > max_shard_bytes) {
      shards.push_back({i});
      continue;
    }
    if (open_bytes + tensor.bytes > max_shard_bytes) {
      shards.push_back(std::move(open));
      open.clear();
      open_bytes = 0;
    }
    open.push_back(i);
    open_bytes += tensor.bytes;
  }
  if (!open.empty()) shards.push_back(std::move(open));
  for (size_t s = 0; s < shards.size(); ++s) {
    std::vector<size_t> members = shards[s];
    for (const size_t first : shards[s]) {
      if (const auto more = sharing.find(first); more != sharing.end()) {
        members.insert(members.end(), more->second.begin(), more->second.end());
      }
    }
    ShardFile file{.file = with_suffix(pattern, shards.size() == 1 ? "" : numbered(s + 1, shards.size()))};
    for (const size_t i : members) file.names.push_back(tensors[i].name);
    split.files.push_back(std::move(file));
  }
  return split;
}

uint64_t parse_shard_size(std::string_view size) {
  std::string words(size);
  const auto fail = [&]() {
    throw UsageError(kOrigin, "max_shard_size '", size,
                     "' is no size. Write a number of bytes, or one with TB, GB, MB or KB, such as 5GB.");
  };
  words = std::string(core::trim(words));
  double unit = 1;
  if (!all_digits(words)) {
    if (words.size() < 3) fail();
    const std::string letters = core::upper(std::string_view(words).substr(words.size() - 2));
    unit = letters == "TB" ? 1e12 : letters == "GB" ? 1e9 : letters == "MB" ? 1e6 : letters == "KB" ? 1e3 : 0;
    words.resize(words.size() - 2);
    words = std::string(core::trim(words));
  }
  const double value = core::python_number(words).value_or(NAN);
  if (unit == 0 || !std::isfinite(value) || value * unit >= 9e18) fail();
  return value > 0 ? static_cast<uint64_t>(value * unit) : 0;
}

bool is_shard_of(std::string_view file, std::string_view pattern) {
  const size_t at = pattern.find("{suffix}");
  if (at == std::string_view::npos) return false;
  const std::string_view before = pattern.substr(0, at), after = pattern.substr(at + 8);
  if (file.ends_with(".index.json")) {
    return file.size() == before.size() + after.size() + 11 && file.starts_with(before) &&
           file.substr(before.size()).starts_with(after);
  }
  if (file.size() < before.size() + after.size() || !file.starts_with(before) || !file.ends_with(after)) return false;
  const std::string_view suffix = file.substr(before.size(), file.size() - before.size() - after.size());
  return suffix.empty() || (suffix.size() == 15 && suffix[0] == '-' && all_digits(suffix.substr(1, 5)) &&
                            suffix.substr(6, 4) == "-of-" && all_digits(suffix.substr(10)));
}

}  // namespace hasten::files
