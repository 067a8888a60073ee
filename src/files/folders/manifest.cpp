// JSON of the manifest; see manifest.h. The tensors, which may be a million, are written as text directly.
#include "hasten/files/folders/manifest.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/core/json.h"
#include "hasten/files/disk/disk.h"

namespace hasten::files {

using core::Value;

namespace {

constexpr std::string_view kFormat = "hasten checkpoint";
constexpr int64_t kVersion = 1;
// Keys of the file that are members of Manifest. All others are its parts.
constexpr std::array<std::string_view, 13> kFacts = {"format",    "version",    "writer",   "libtorch", "save_id",
                                                     "time",      "world_size", "strategy", "hosts",    "step",
                                                     "iteration", "files",      "tensors"};

template <class... Parts>
[[noreturn]] void bad_manifest(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good manifest: ", parts...,
                  ". Load another checkpoint, or run 'hasten checkpoint repair' on the folder.");
}

std::string json_text(std::string_view words) {
  return Value(words).to_json();
}

void append_list(std::string& out, const std::vector<int64_t>& numbers) {
  out += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(numbers[i]);
  }
  out += ']';
}

/// Returns the axis along which the pieces are equal parts in order, one file each, or -1.
int split_axis(const ManifestTensor& tensor) {
  const size_t n = tensor.pieces.size();
  if (n < 2) return -1;
  for (size_t axis = 0; axis < tensor.info.shape.size(); ++axis) {
    if (tensor.info.shape[axis] % static_cast<int64_t>(n) != 0) continue;
    const int64_t size = tensor.info.shape[axis] / static_cast<int64_t>(n);
    bool equal = size > 0;
    for (size_t i = 0; i < n && equal; ++i) {
      Box part = whole_box(tensor.info.shape);
      part.offset[axis] = static_cast<int64_t>(i) * size;
      part.size[axis] = size;
      equal = tensor.pieces[i].box == part;
    }
    if (equal) return static_cast<int>(axis);
  }
  return -1;
}

void append_pieces(std::string& out, const ManifestTensor& tensor) {
  const int axis = split_axis(tensor);
  if (axis >= 0) {
    out += ",\"pieces\":{\"split\":[" + std::to_string(axis) + ',' + std::to_string(tensor.pieces.size()) +
           "],\"parts\":[";
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      const ManifestPiece& piece = tensor.pieces[i];
      if (i > 0) out += ',';
      out += '[' + std::to_string(piece.file) + ",\"" + piece.xxh3.hex() + "\"," + std::to_string(piece.position) + ']';
    }
    out += "]}";
    return;
  }
  out += ",\"pieces\":[";
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const ManifestPiece& piece = tensor.pieces[i];
    if (i > 0) out += ',';
    out += '[' + std::to_string(piece.file) + ',';
    append_list(out, piece.box.offset);
    out += ',';
    append_list(out, piece.box.size);
    out += ",\"" + piece.xxh3.hex() + "\"," + std::to_string(piece.position) + ']';
  }
  out += ']';
}

void append_tensor(std::string& out, const ManifestTensor& tensor) {
  out += json_text(tensor.info.name) + ":{\"dtype\":\"" + std::string(torch_name(tensor.info.dtype)) + "\",\"shape\":";
  append_list(out, tensor.info.shape);
  out += ",\"kind\":" + json_text(tensor.kind);
  if (!tensor.tied_to.empty()) {
    out += ",\"tied_to\":" + json_text(tensor.tied_to);
  } else {
    append_pieces(out, tensor);
  }
  out += '}';
}

const Value& part_of(const std::string& path, const Value& map, const char* key) {
  const Value* found = map.find(key);
  if (found == nullptr) bad_manifest(path, "it has no '", key, "'");
  return *found;
}

std::string text_or(const std::string& path, const Value& map, const char* key, const char* otherwise) {
  const Value* found = map.find(key);
  if (found != nullptr && !found->is_string()) bad_manifest(path, "its '", key, "' is no text");
  return found == nullptr ? otherwise : found->as_string();
}

template <class T>
T whole_number_of(const std::string& path, const Value& json, const char* what) {
  if (!json.is_int() || json.as_int() < 0) bad_manifest(path, what, " is no whole number from 0 on");
  return static_cast<T>(json.as_int());
}

int64_t number_or(const std::string& path, const Value& map, const char* key, int64_t otherwise) {
  const Value* found = map.find(key);
  return found == nullptr ? otherwise : whole_number_of<int64_t>(path, *found, key);
}

const Value::List& list_of(const std::string& path, const Value& json, const char* what) {
  if (!json.is_list()) bad_manifest(path, what, " is no list");
  return json.as_list();
}

std::vector<int64_t> numbers_of(const std::string& path, const Value& json, const char* what) {
  std::vector<int64_t> numbers;
  for (const Value& one : list_of(path, json, what)) numbers.push_back(whole_number_of<int64_t>(path, one, what));
  return numbers;
}

core::Xxh128 hash_of(const std::string& path, const Value& json) {
  core::Xxh128 hash;
  if (!json.is_string() || !core::Xxh128::parse(json.as_string(), hash)) {
    bad_manifest(path, "a hash is not 32 hexadecimal digits");
  }
  return hash;
}

ManifestPiece piece_of(const std::string& path, const Value& json) {
  if (!json.is_list() || json.size() != 5) bad_manifest(path, "a piece is not [file, offset, size, xxh3, position]");
  return {.file = whole_number_of<size_t>(path, json.as_list()[0], "a piece's file"),
          .box = {numbers_of(path, json.as_list()[1], "a piece's offset"),
                  numbers_of(path, json.as_list()[2], "a piece's size")},
          .xxh3 = hash_of(path, json.as_list()[3]),
          .position = whole_number_of<uint64_t>(path, json.as_list()[4], "a piece's position")};
}

std::vector<ManifestPiece> split_pieces(const std::string& path, const Value& json, const TensorInfo& info) {
  const auto split = numbers_of(path, part_of(path, json, "split"), "a split");
  const Value& parts = part_of(path, json, "parts");
  if (split.size() != 2 || split[0] >= static_cast<int64_t>(info.shape.size()) || split[1] < 1 || !parts.is_list() ||
      static_cast<int64_t>(parts.size()) != split[1] || info.shape[split[0]] % split[1] != 0) {
    bad_manifest(path, "tensor '", info.name, "' has a split that does not fit its shape [", join(info.shape), "]");
  }
  const size_t axis = static_cast<size_t>(split[0]);
  std::vector<ManifestPiece> pieces;
  for (const Value& part : parts.as_list()) {
    if (!part.is_list() || part.size() != 3) bad_manifest(path, "a part is not [file, xxh3, position]");
    Box box = whole_box(info.shape);
    box.size[axis] = info.shape[axis] / split[1];
    box.offset[axis] = static_cast<int64_t>(pieces.size()) * box.size[axis];
    pieces.push_back({.file = whole_number_of<size_t>(path, part.as_list()[0], "a part's file"),
                      .box = std::move(box),
                      .xxh3 = hash_of(path, part.as_list()[1]),
                      .position = whole_number_of<uint64_t>(path, part.as_list()[2], "a part's position")});
  }
  return pieces;
}

/// Checks that the pieces cover the tensor once: inside, of as many elements, and pairwise apart.
void check_pieces(const std::string& path, const ManifestTensor& tensor, const std::vector<ManifestFile>& files) {
  int64_t covered = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    if (piece.file >= files.size())
      bad_manifest(path, "tensor '", tensor.info.name, "' names file number ", piece.file, " of ", files.size());
    if (!fits(piece.box, tensor.info.shape)) {
      bad_manifest(path, "tensor '", tensor.info.name, "' [", join(tensor.info.shape), "] has the piece ",
                   describe(piece.box), " outside it");
    }
    const uint64_t bytes = static_cast<uint64_t>(numel_of(piece.box)) * element_bytes(tensor.info.dtype);
    const uint64_t have = files[piece.file].bytes;
    if (piece.position > have || bytes > have - piece.position) {
      bad_manifest(path, "tensor '", tensor.info.name, "' has a piece beyond the end of '", files[piece.file].name,
                   "'");
    }
    covered += numel_of(piece.box);
  }
  if (covered != numel_of(tensor.info.shape)) {
    bad_manifest(path, "the pieces of tensor '", tensor.info.name, "' have ", covered, " elements, expected ",
                 numel_of(tensor.info.shape));
  }
  // Pieces sorted by their first index overlap only with later ones that begin before they end.
  std::vector<const Box*> boxes;
  for (const ManifestPiece& piece : tensor.pieces) boxes.push_back(&piece.box);
  std::sort(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) { return a->offset < b->offset; });
  for (size_t i = 0; i < boxes.size() && !tensor.info.shape.empty(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->offset[0] < boxes[i]->offset[0] + boxes[i]->size[0]; ++j) {
      if (intersection(*boxes[i], *boxes[j]))
        bad_manifest(path, "pieces of tensor '", tensor.info.name, "' overlap: ", describe(*boxes[i]), " and ",
                     describe(*boxes[j]));
    }
  }
}

ManifestTensor tensor_of(const std::string& path, const std::string& name, const Value& json) {
  if (!json.is_map()) bad_manifest(path, "tensor '", name, "' is no object");
  const Value& dtype = part_of(path, json, "dtype");
  const auto known = dtype.is_string() ? dtype_of_torch_name(dtype.as_string()) : std::nullopt;
  if (!known) bad_manifest(path, "tensor '", name, "' has an unknown dtype");
  ManifestTensor tensor{
      .info = {.name = name, .dtype = *known, .shape = numbers_of(path, part_of(path, json, "shape"), "a shape")}};
  try {
    bytes_of(tensor.info);
  } catch (const UsageError& error) {
    bad_manifest(path, error.what());
  }
  tensor.kind = text_or(path, json, "kind", "model");
  tensor.tied_to = text_or(path, json, "tied_to", "");
  if (!tensor.tied_to.empty()) return tensor;
  const Value& pieces = part_of(path, json, "pieces");
  if (pieces.is_map()) {
    tensor.pieces = split_pieces(path, pieces, tensor.info);
  } else if (pieces.is_list()) {
    for (const Value& piece : pieces.as_list()) tensor.pieces.push_back(piece_of(path, piece));
  } else {
    bad_manifest(path, "tensor '", name, "' has pieces of another form");
  }
  return tensor;
}

bool is_inside(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "..";
}

void read_facts(const std::string& path, const Value& json, Manifest& manifest) {
  for (const auto& [key, member] :
       {std::pair("writer", &Manifest::writer), std::pair("libtorch", &Manifest::libtorch),
        std::pair("save_id", &Manifest::save_id), std::pair("strategy", &Manifest::strategy)})
    manifest.*member = text_or(path, json, key, "");
  if (const Value* time = json.find("time")) {
    if (!time->is_number()) bad_manifest(path, "its 'time' is no number");
    manifest.time = time->as_double();
  }
  manifest.world_size = number_or(path, json, "world_size", 1);
  manifest.step = number_or(path, json, "step", 0);
  manifest.iteration = number_or(path, json, "iteration", 0);
  if (const Value* hosts = json.find("hosts")) {
    for (const Value& host : list_of(path, *hosts, "'hosts'")) {
      if (!host.is_string()) bad_manifest(path, "a host is no text");
      manifest.hosts.push_back(host.as_string());
    }
  }
  for (const Value& file : list_of(path, part_of(path, json, "files"), "'files'")) {
    if (!file.is_map()) bad_manifest(path, "a file is no object");
    manifest.files.push_back({.name = text_or(path, file, "name", ""),
                              .bytes = whole_number_of<uint64_t>(path, part_of(path, file, "bytes"), "a file's size"),
                              .header_xxh3 = hash_of(path, part_of(path, file, "header_xxh3"))});
    if (!is_inside(manifest.files.back().name)) {
      bad_manifest(path, "it names the file '", manifest.files.back().name, "', which is not inside its folder");
    }
  }
}

void read_tensors(const std::string& path, const Value& json, Manifest& manifest) {
  const Value& tensors = part_of(path, json, "tensors");
  if (!tensors.is_map()) bad_manifest(path, "'tensors' is no object");
  std::map<std::string_view, const ManifestTensor*> held;
  manifest.tensors.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors.as_map()) manifest.tensors.push_back(tensor_of(path, name, tensor));
  for (const ManifestTensor& tensor : manifest.tensors) {
    held.emplace(tensor.info.name, &tensor);
    if (tensor.tied_to.empty()) check_pieces(path, tensor, manifest.files);
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.tied_to.empty()) continue;
    const auto other = held.find(tensor.tied_to);
    if (other == held.end() || !other->second->tied_to.empty() || other->second->info.shape != tensor.info.shape ||
        other->second->info.dtype != tensor.info.dtype) {
      bad_manifest(path, "tensor '", tensor.info.name, "' is tied to '", tensor.tied_to, "', which does not fit");
    }
  }
}

}  // namespace

const ManifestTensor* Manifest::find(std::string_view name) const noexcept {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.info.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

uint64_t Manifest::total_bytes() const noexcept {
  uint64_t total = 0;
  for (const ManifestFile& file : files) total += file.bytes;
  return total;
}

std::string to_json(const Manifest& manifest) {
  Value facts = Value::map({{"format", kFormat},
                            {"version", manifest.version},
                            {"writer", manifest.writer},
                            {"libtorch", manifest.libtorch},
                            {"save_id", manifest.save_id},
                            {"time", manifest.time},
                            {"world_size", manifest.world_size},
                            {"strategy", manifest.strategy},
                            {"hosts", manifest.hosts},
                            {"step", manifest.step},
                            {"iteration", manifest.iteration},
                            {"accumulation", manifest.accumulation}});
  for (const auto& [key, value] : manifest.parts.as_map()) facts[key] = value;
  Value files = Value::list();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(Value::map({{"name", file.name}, {"bytes", file.bytes}, {"header_xxh3", file.header_xxh3.hex()}}));
  }
  facts["files"] = std::move(files);
  std::string out = facts.to_json();
  out.back() = ',';
  out += "\n\"tensors\":{";
  bool first = true;
  for (const ManifestTensor& tensor : manifest.tensors) {
    out += first ? "\n" : ",\n";
    first = false;
    append_tensor(out, tensor);
  }
  return out + "\n}}\n";
}

Manifest parse_manifest(std::string_view json, const std::string& path) {
  core::JsonError error;
  const auto parsed = core::read_json(json, {.unique_keys = true, .named_doubles = true, .max_depth = 200}, &error);
  if (!parsed) bad_manifest(path, error.text());
  if (text_or(path, *parsed, "format", "") != kFormat) bad_manifest(path, "its 'format' is not \"", kFormat, "\"");
  Manifest manifest{.version = whole_number_of<int64_t>(path, part_of(path, *parsed, "version"), "its version")};
  if (manifest.version > kVersion) {
    throw DataError(kOrigin, path, "'", path, "' has version ", manifest.version,
                    " of hasten's form, and this hasten reads up to ", kVersion, ". Use a newer hasten.");
  }
  read_facts(path, *parsed, manifest);
  read_tensors(path, *parsed, manifest);
  manifest.parts = Value::map();
  for (const auto& [key, value] : parsed->as_map()) {
    if (key == "accumulation") {
      manifest.accumulation = value;
    } else if (std::find(kFacts.begin(), kFacts.end(), key) == kFacts.end()) {
      manifest.parts[key] = value;
    }
  }
  return manifest;
}

std::string latest_tag(const std::string& folder) {
  std::ifstream latest(std::filesystem::path(folder) / "latest");
  std::string tag;
  std::getline(latest, tag);
  tag.erase(tag.find_last_not_of(" \r\t") + 1);
  return tag;
}

std::string tagged_folder(const std::string& folder, std::string tag) {
  namespace fs = std::filesystem;
  std::error_code none;
  if (fs::exists(fs::path(folder) / kManifestFile, none)) return folder;
  if (tag.empty()) tag = latest_tag(folder);
  const fs::path tagged = fs::path(folder) / tag;
  return !tag.empty() && fs::exists(tagged / kManifestFile, none) ? tagged.string() : folder;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kManifestFile).string();
  return parse_manifest(read_small_file(path, uint64_t{4} << 30), path);
}

void write_manifest(Disk& disk, const std::string& folder, const Manifest& manifest) {
  write_file(disk, (std::filesystem::path(folder) / kManifestFile).string(), to_json(manifest));
}

void check_files(const Manifest& manifest, const std::string& folder) {
  for (const ManifestFile& file : manifest.files) {
    const auto path = std::filesystem::path(folder) / file.name;
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error)
      fail_data(path.string(), "the file is missing, expected ", file.bytes, " bytes. The checkpoint is damaged.");
    if (bytes != file.bytes)
      fail_data(path.string(), "it has ", bytes, " bytes, expected ", file.bytes, ". The checkpoint is damaged.");
  }
}

}  // namespace hasten::files
