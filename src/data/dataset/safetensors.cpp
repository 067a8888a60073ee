// Reading safetensors files; see safetensors.h. The format: the header's length (64 bits little-endian), the
// header as a JSON object of name -> {dtype, shape, data_offsets [begin, end)}, perhaps padded with spaces,
// then the values. Together the tensors cover all bytes after the header.
#include "hasten/data/dataset/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "data/dataset/mapped_file.h"
#include "data/origin.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the reference's limit

template <class... Parts>
[[noreturn]] void fail(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good safetensors file: ", parts...,
                  ". Get the file again, or write it anew.");
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  static constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {{"BOOL", at::kBool},
                                                                           {"U8", at::kByte},
                                                                           {"I8", at::kChar},
                                                                           {"U16", at::kUInt16},
                                                                           {"I16", at::kShort},
                                                                           {"U32", at::kUInt32},
                                                                           {"I32", at::kInt},
                                                                           {"U64", at::kUInt64},
                                                                           {"I64", at::kLong},
                                                                           {"F16", at::kHalf},
                                                                           {"BF16", at::kBFloat16},
                                                                           {"F32", at::kFloat},
                                                                           {"F64", at::kDouble},
                                                                           {"C64", at::kComplexFloat},
                                                                           {"F8_E4M3", at::kFloat8_e4m3fn},
                                                                           {"F8_E5M2", at::kFloat8_e5m2},
                                                                           {"F8_E8M0", at::kFloat8_e8m0fnu}};
  for (const auto& [known, dtype] : kTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kByte;
  std::vector<int64_t> shape = {};
  uint64_t begin = 0, end = 0;
};

/// The JSON of the header; a key that stands twice in one object is an error.
nlohmann::json parse(const std::string& path, std::string_view header) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(path, "its header names ", value.dump(), " twice");
    }
    return true;
  };
  if (header.empty() || header.front() != '{') fail(path, "its header does not begin with '{'");
  try {
    return nlohmann::json::parse(header, watch);
  } catch (const nlohmann::json::exception& error) {
    fail(path, "its header is no JSON: ", error.what());
  }
}

/// A value for a message; what has parts may be nested deeper than printing it would survive.
std::string shown(const nlohmann::json& value) {
  return value.is_structured() ? text("an ", value.type_name(), " of ", value.size()) : value.dump();
}

/// A whole number of the header that is not negative.
uint64_t whole(const std::string& path, const std::string& name, const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    fail(path, "tensor '", name, "' has ", shown(value), " where a whole number from 0 on is expected");
  }
  return value.get<uint64_t>();
}

Entry entry_of(const std::string& path, const std::string& name, const nlohmann::json& json) {
  const auto part = [&](const char* key) -> const nlohmann::json& {
    if (!json.is_object() || !json.contains(key)) fail(path, "tensor '", name, "' has no ", key);
    return json[key];
  };
  Entry entry{.name = name};
  const auto& dtype = part("dtype");
  const auto known = dtype.is_string() ? dtype_of(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) fail(path, "tensor '", name, "' has the dtype ", shown(dtype), ", which torch has not");
  entry.dtype = *known;
  const auto &shape = part("shape"), &offsets = part("data_offsets");
  if (!shape.is_array()) fail(path, "tensor '", name, "' has the shape ", shown(shape), ", expected a list");
  for (const auto& size : shape) {
    const uint64_t value = whole(path, name, size);
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(path, "tensor '", name, "' has a size of ", value);
    }
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  if (!offsets.is_array() || offsets.size() != 2) {
    fail(path, "tensor '", name, "' has the data_offsets ", shown(offsets), ", expected [begin, end]");
  }
  entry.begin = whole(path, name, offsets[0]);
  entry.end = whole(path, name, offsets[1]);
  return entry;
}

/// Bytes that dtype and shape take; nothing if they, or those of a shape with 1 for each 0, are more than a
/// tensor can count.
std::optional<uint64_t> stated_bytes(const Entry& entry) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  bool empty = false;
  for (const int64_t size : entry.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

/// No holes, no overlaps, sizes that fit, and all of the file's bytes.
void check_layout(const std::string& path, std::vector<Entry>& entries, uint64_t have) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered || entry.end < entry.begin) {
      fail(path, "tensor '", entry.name, "' lies at [", entry.begin, ", ", entry.end, "), expected it from ",
           covered, " on, where the tensor before it ends");
    }
    const auto stated = stated_bytes(entry);
    if (!stated || *stated != entry.end - entry.begin) {
      fail(path, "tensor '", entry.name, "' of ", entry.dtype, " [", join(entry.shape), "] lies at [",
           entry.begin, ", ", entry.end, "), which are ", entry.end - entry.begin, " bytes, expected ",
           stated ? std::to_string(*stated) : "more than a tensor can count");
    }
    covered = entry.end;
  }
  if (covered != have) {
    fail(path, "its tensors take ", covered, " bytes, but it holds ", have, " after the header: it is ",
         covered > have ? "truncated" : "too long");
  }
}

std::string_view header_of(const std::string& path, std::string_view bytes) {
  if (bytes.size() < kLengthBytes) fail(path, "it has ", bytes.size(), " bytes, expected 8 at least");
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > kMaxHeader) fail(path, "its header has ", length, " bytes, expected at most ", kMaxHeader);
  if (length > bytes.size() - kLengthBytes) {
    fail(path, "it has ", bytes.size(), " bytes, but its header alone takes ", kLengthBytes + length,
         ": it is truncated");
  }
  return bytes.substr(kLengthBytes, length);
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path, "a safetensors file");
  const std::string_view header = header_of(path, file->bytes());
  const auto contents = std::make_shared<Contents>();
  contents->path = path;
  std::vector<Entry> entries;
  const nlohmann::json parsed = parse(path, header);
  for (const auto& [name, json] : parsed.items()) {
    if (name != "__metadata__") {
      entries.push_back(entry_of(path, name, json));
      continue;
    }
    if (json.is_null()) continue;
    if (!json.is_object()) fail(path, "its __metadata__ is no object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) fail(path, "its __metadata__ has '", key, "' that is no text");
      contents->metadata.emplace(key, value.get<std::string>());
    }
  }
  const size_t begin = kLengthBytes + header.size();
  check_layout(path, entries, file->bytes().size() - begin);
  for (const Entry& entry : entries) {
    const std::string_view values = file->bytes().substr(begin + entry.begin, entry.end - entry.begin);
    if (entry.dtype == at::kBool &&
        std::any_of(values.begin(), values.end(), [](char value) { return value & ~1; })) {
      fail(path, "tensor '", entry.name, "' of BOOL holds a value that is neither 0 nor 1");
    }
    contents->tensors.emplace(entry.name, tensor_over(file, begin + entry.begin, entry.shape,
                                                      strides_of(entry.shape), entry.dtype));
  }
  contents_ = contents;
}

at::Tensor SafetensorsFile::operator[](const std::string& name) const {
  const auto found = tensors().find(name);
  if (found != tensors().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, unused] : tensors()) names.push_back(known);
  throw UsageError(kOrigin, "'", path(), "' has no tensor '", name, "'", did_you_mean(name, names),
                   "; it has ", names.size(), names.size() <= 20 ? ": " + join(names) : "",
                   ". Correct the name.");
}

NamedTensorDataset SafetensorsFile::rows(const std::vector<std::string>& names) const {
  std::map<std::string, at::Tensor> chosen;
  for (const std::string& name : names) chosen.emplace(name, (*this)[name]);
  return NamedTensorDataset(std::move(chosen));
}

}  // namespace hasten::data
