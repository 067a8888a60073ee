// Checks the form as the reference does: no holes, no overlaps, no repeated names. See safetensors_header.h.
#include "hasten/files/safetensors/safetensors_header.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/core/json.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::files {
namespace {

using core::Value;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMostLevels = 100;
constexpr uint64_t kMaxHeader = 100'000'000;  // the reference's limit

template <class... Parts>
[[noreturn]] void bad_header(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good safetensors file: ", parts...,
                  ". Get the file again, or write it anew.");
}

/// Returns the JSON of the header. A repeated key in an object is an error, and so is deep nesting.
Value parse_json_header(const std::string& path, std::string_view header) {
  using Kind = core::JsonError::Kind;
  if (header.empty() || header.front() != '{') bad_header(path, "its header does not begin with '{'");
  core::JsonError error;
  auto json = core::read_json(header, {.unique_keys = true, .max_depth = kMostLevels}, &error);
  if (json) return *std::move(json);
  if (error.kind == Kind::kDepth) bad_header(path, "its header nests more than ", kMostLevels, " levels deep");
  if (error.kind == Kind::kRepeatedKey) bad_header(path, "its header names \"", error.subject, "\" twice");
  bad_header(path, "its header is no JSON: ", error.text());
}

/// Returns a value for a message; nested values are only named.
std::string shown(const Value& value) {
  if (value.is_list()) return text("an array of ", value.size());
  return value.is_map() ? text("an object of ", value.size()) : value.to_json();
}

uint64_t whole_number(const std::string& path, const std::string& name, const Value& value) {
  if (!value.is_int() || value.as_int() < 0) {
    bad_header(path, "tensor '", name, "' has ", shown(value), " where a whole number from 0 on is expected");
  }
  return static_cast<uint64_t>(value.as_int());
}

std::vector<int64_t> stated_shape(const std::string& path, const std::string& name, const Value& json, Dtype dtype) {
  if (!json.is_list()) bad_header(path, "tensor '", name, "' has the shape ", shown(json), ", expected a list");
  std::vector<int64_t> shape;
  for (const Value& size : json.as_list()) shape.push_back(static_cast<int64_t>(whole_number(path, name, size)));
  if (dtype == Dtype::kFloat4E2M1FnX2) {
    if (shape.empty() || shape.back() % 2 != 0) {
      bad_header(path, "tensor '", name, "' of F4 has the shape [", join(shape), "], whose last size must be even");
    }
    shape.back() /= 2;
  }
  return shape;
}

SafetensorsEntry entry_of(const std::string& path, const std::string& name, const Value& json) {
  const auto part = [&](const char* key) -> const Value& {
    const Value* found = json.find(key);
    if (found == nullptr) bad_header(path, "tensor '", name, "' has no ", key);
    return *found;
  };
  const auto& dtype = part("dtype");
  const auto known = dtype.is_string() ? dtype_of_safetensors_name(dtype.as_string()) : std::nullopt;
  if (!known) bad_header(path, "tensor '", name, "' has the dtype ", shown(dtype), ", which torch has not");
  SafetensorsEntry entry{
      .info = {.name = name, .dtype = *known, .shape = stated_shape(path, name, part("shape"), *known)}};
  const auto& offsets = part("data_offsets");
  if (!offsets.is_list() || offsets.size() != 2) {
    bad_header(path, "tensor '", name, "' has the data_offsets ", shown(offsets), ", expected [begin, end]");
  }
  entry.begin = whole_number(path, name, offsets.as_list()[0]);
  entry.end = whole_number(path, name, offsets.as_list()[1]);
  return entry;
}

/// Returns the bytes that dtype and shape take. Returns nothing if they, or those of a shape with 1 for each 0, are
/// more than a tensor can count.
std::optional<uint64_t> stated_bytes(const TensorInfo& info) {
  int64_t bytes = static_cast<int64_t>(element_bytes(info.dtype));
  bool empty = false;
  for (const int64_t size : info.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

/// Checks that there are no holes, no overlaps, sizes that fit, and all of the file's bytes.
void check_layout(const std::string& path, std::vector<SafetensorsEntry>& entries, uint64_t have) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    const TensorInfo& info = entry.info;
    if (entry.begin != covered || entry.end < entry.begin) {
      bad_header(path, "tensor '", info.name, "' lies at [", entry.begin, ", ", entry.end, "), expected it from ",
                 covered, " on, where the tensor before it ends");
    }
    const auto stated = stated_bytes(info);
    if (!stated || *stated != entry.end - entry.begin) {
      bad_header(path, "tensor '", info.name, "' of ", torch_name(info.dtype), " [", join(info.shape), "] lies at [",
                 entry.begin, ", ", entry.end, "), which are ", entry.end - entry.begin, " bytes, expected ",
                 stated ? std::to_string(*stated) : "more than a tensor can count");
    }
    covered = entry.end;
  }
  if (covered != have) {
    bad_header(path, "its tensors take ", covered, " bytes, but it holds ", have, " after the header: it is ",
               covered > have ? "truncated" : "too long");
  }
}

uint64_t header_length(const std::string& path, std::string_view head, uint64_t file_bytes) {
  if (head.size() < kLengthBytes) bad_header(path, "it has ", head.size(), " bytes, expected 8 at least");
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  if (length > kMaxHeader && is_printable(head)) refuse_text(path, head);
  if (length > kMaxHeader) bad_header(path, "its header has ", length, " bytes, expected at most ", kMaxHeader);
  if (length > file_bytes - kLengthBytes) {
    bad_header(path, "it has ", file_bytes, " bytes, but its header alone takes ", kLengthBytes + length,
               ": it is truncated");
  }
  return length;
}

Value json_of(const TensorInfo& info, uint64_t begin, uint64_t end) {
  std::vector<int64_t> shape = info.shape;
  if (info.dtype == Dtype::kFloat4E2M1FnX2 && !shape.empty()) shape.back() *= 2;
  return Value::map(
      {{"dtype", safetensors_name(info.dtype)}, {"shape", shape}, {"data_offsets", Value::list({begin, end})}});
}

}  // namespace

const std::string* SafetensorsHeader::find_metadata(std::string_view key) const noexcept {
  for (const auto& [known, value] : metadata) {
    if (known == key) return &value;
  }
  return nullptr;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view head, uint64_t file_bytes) {
  refuse_stand_in(path, head);
  const uint64_t length = header_length(path, head, file_bytes);
  if (head.size() - kLengthBytes < length)
    throw InternalError(kOrigin, "the header of '", path, "' was not read whole.");
  SafetensorsHeader header{.body_offset = kLengthBytes + length, .body_bytes = file_bytes - kLengthBytes - length};
  const Value parsed = parse_json_header(path, head.substr(kLengthBytes, length));
  for (const auto& [name, json] : parsed.as_map()) {
    if (name != "__metadata__") {
      header.entries.push_back(entry_of(path, name, json));
      continue;
    }
    if (json.is_null()) continue;
    if (!json.is_map()) bad_header(path, "its __metadata__ is no object");
    for (const auto& [key, value] : json.as_map()) {
      if (!value.is_string()) bad_header(path, "its __metadata__ has '", key, "' that is no text");
      header.metadata.emplace_back(key, value.as_string());
    }
    std::sort(header.metadata.begin(), header.metadata.end());
  }
  check_layout(path, header.entries, header.body_bytes);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::string& path) {
  const PosixFile file = PosixFile::open_to_read(path);
  const uint64_t size = file.size();
  std::string head(std::min<uint64_t>(size, 512), '\0');
  file.read_at(0, head.data(), head.size());
  refuse_stand_in(path, head);
  const uint64_t length = header_length(path, head, size);
  head.resize(kLengthBytes + length);
  file.read_at(kLengthBytes, head.data() + kLengthBytes, length);
  return parse_safetensors_header(path, head, size);
}

std::vector<size_t> safetensors_order(const std::vector<TensorInfo>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const size_t bytes_a = element_bytes(tensors[a].dtype), bytes_b = element_bytes(tensors[b].dtype);
    if (bytes_a != bytes_b) return bytes_a > bytes_b;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

SafetensorsLayout lay_out_safetensors(const std::vector<TensorInfo>& tensors,
                                      const std::vector<std::pair<std::string, std::string>>& metadata,
                                      uint64_t alignment) {
  Value::Map json;
  if (!metadata.empty()) json.emplace_back("__metadata__", Value::Map(metadata.begin(), metadata.end()));
  SafetensorsLayout layout{.offsets = std::vector<uint64_t>(tensors.size())};
  std::set<std::string_view> names{"__metadata__"};
  uint64_t at = 0;
  for (const size_t i : safetensors_order(tensors)) {
    const TensorInfo& info = tensors[i];
    if (safetensors_name(info.dtype).empty()) {
      throw UsageError(kOrigin, "safetensors has no dtype for tensor '", info.name, "' of ", torch_name(info.dtype),
                       ". Convert it, or save with safe_serialization = false.");
    }
    if (!names.insert(info.name).second) {
      throw UsageError(kOrigin, "two tensors are named '", info.name, "'; a safetensors file holds one of a name.");
    }
    const uint64_t end = at + static_cast<uint64_t>(bytes_of(info));
    layout.offsets[i] = at;
    json.emplace_back(info.name, json_of(info, at, end));
    at = end;
  }
  std::string header = core::write_json(std::move(json));
  const uint64_t unit = std::max<uint64_t>(alignment, 8);
  const uint64_t begin = (kLengthBytes + header.size() + unit - 1) / unit * unit;
  header.resize(begin - kLengthBytes, ' ');
  if (header.size() > kMaxHeader) {
    throw UsageError(kOrigin, "the header of ", tensors.size(), " tensors takes ", header.size(),
                     " bytes, more than the ", kMaxHeader, " of a safetensors file. Save in several files.");
  }
  for (size_t i = 0; i < kLengthBytes; ++i) layout.head += static_cast<char>(header.size() >> (8 * i));
  layout.head += header;
  for (uint64_t& offset : layout.offsets) offset += begin;
  layout.file_bytes = begin + at;
  return layout;
}

}  // namespace hasten::files
