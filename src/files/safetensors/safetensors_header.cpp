// Checks the form as the reference does: no holes, no overlaps, no repeated names. See safetensors_header.h.
#include "hasten/files/safetensors/safetensors_header.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::files {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the reference's limit

template <class... Parts>
[[noreturn]] void bad_header(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good safetensors file: ", parts...,
                  ". Get the file again, or write it anew.");
}

/// Returns the JSON of the header. A repeated key in an object is an error, and so is deep nesting.
nlohmann::json parse_json_header(const std::string& path, std::string_view header) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > 100) bad_header(path, "its header nests more than 100 levels deep");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      bad_header(path, "its header names ", value.dump(), " twice");
    }
    return true;
  };
  if (header.empty() || header.front() != '{') bad_header(path, "its header does not begin with '{'");
  try {
    return nlohmann::json::parse(header, watch);
  } catch (const nlohmann::json::exception& error) {
    bad_header(path, "its header is no JSON: ", error.what());
  }
}

/// Returns a value for a message; nested values are only named.
std::string shown(const nlohmann::json& value) {
  return value.is_structured() ? text("an ", value.type_name(), " of ", value.size()) : value.dump();
}

uint64_t whole_number(const std::string& path, const std::string& name, const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    bad_header(path, "tensor '", name, "' has ", shown(value), " where a whole number from 0 on is expected");
  }
  return value.get<uint64_t>();
}

std::vector<int64_t> stated_shape(const std::string& path, const std::string& name, const nlohmann::json& json,
                                  Dtype dtype) {
  if (!json.is_array()) bad_header(path, "tensor '", name, "' has the shape ", shown(json), ", expected a list");
  std::vector<int64_t> shape;
  for (const auto& size : json) {
    const uint64_t value = whole_number(path, name, size);
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      bad_header(path, "tensor '", name, "' has a size of ", value);
    }
    shape.push_back(static_cast<int64_t>(value));
  }
  if (dtype == Dtype::kFloat4E2M1FnX2) {
    if (shape.empty() || shape.back() % 2 != 0) {
      bad_header(path, "tensor '", name, "' of F4 has the shape [", join(shape), "], whose last size must be even");
    }
    shape.back() /= 2;
  }
  return shape;
}

SafetensorsEntry entry_of(const std::string& path, const std::string& name, const nlohmann::json& json) {
  const auto part = [&](const char* key) -> const nlohmann::json& {
    if (!json.is_object() || !json.contains(key)) bad_header(path, "tensor '", name, "' has no ", key);
    return json[key];
  };
  const auto& dtype = part("dtype");
  const auto known = dtype.is_string() ? dtype_of_safetensors_name(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) bad_header(path, "tensor '", name, "' has the dtype ", shown(dtype), ", which torch has not");
  SafetensorsEntry entry{
      .info = {.name = name, .dtype = *known, .shape = stated_shape(path, name, part("shape"), *known)}};
  const auto& offsets = part("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    bad_header(path, "tensor '", name, "' has the data_offsets ", shown(offsets), ", expected [begin, end]");
  }
  entry.begin = whole_number(path, name, offsets[0]);
  entry.end = whole_number(path, name, offsets[1]);
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
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
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
  if (length > kMaxHeader) bad_header(path, "its header has ", length, " bytes, expected at most ", kMaxHeader);
  if (length > file_bytes - kLengthBytes) {
    bad_header(path, "it has ", file_bytes, " bytes, but its header alone takes ", kLengthBytes + length,
               ": it is truncated");
  }
  return length;
}

nlohmann::ordered_json json_of(const TensorInfo& info, uint64_t begin, uint64_t end) {
  std::vector<int64_t> shape = info.shape;
  if (info.dtype == Dtype::kFloat4E2M1FnX2 && !shape.empty()) shape.back() *= 2;
  return {{"dtype", safetensors_name(info.dtype)}, {"shape", shape}, {"data_offsets", {begin, end}}};
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
  const nlohmann::json parsed = parse_json_header(path, head.substr(kLengthBytes, length));
  for (const auto& [name, json] : parsed.items()) {
    if (name != "__metadata__") {
      header.entries.push_back(entry_of(path, name, json));
      continue;
    }
    if (json.is_null()) continue;
    if (!json.is_object()) bad_header(path, "its __metadata__ is no object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) bad_header(path, "its __metadata__ has '", key, "' that is no text");
      header.metadata.emplace_back(key, value.get<std::string>());
    }
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
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    nlohmann::ordered_json pairs = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) pairs.push_back({key, value});
    json.push_back({"__metadata__", std::move(pairs)});
  }
  SafetensorsLayout layout{.offsets = std::vector<uint64_t>(tensors.size())};
  std::set<std::string_view> names{"__metadata__"};
  uint64_t at = 0;
  // The ordered object appends without a search, so a million tensors cost no square of that.
  auto& members = json.get_ref<nlohmann::ordered_json::object_t&>();
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
    members.nlohmann::ordered_json::object_t::Container::emplace_back(info.name, json_of(info, at, end));
    at = end;
  }
  std::string header = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
