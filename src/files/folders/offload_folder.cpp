// See offload_folder.h.
#include "hasten/files/folders/offload_folder.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/sentence.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/base/stand_in.h"
#include "hasten/files/safetensors/safetensors_source.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using core::Value;

std::string index_path(const std::string& folder) {
  return (fs::path(folder) / "index.json").string();
}

std::string dat_path(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / (name + ".dat")).string();
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw DataError(Origin{"files"}, path, path, ": ", what);
}

void write_whole(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file)
    refuse(path, text("cannot write ", bytes, " bytes: ", std::strerror(errno),
                      ". Free space on the disk, or choose another folder."));
}

Value entry_of(const TensorInfo& info) {
  auto shape = Value::list();
  for (const int64_t size : info.shape) shape.push_back(size);
  return Value::map({{"dtype", std::string(torch_name(info.dtype))}, {"shape", shape}});
}

// A tensor in a .dat file, or in a safetensors file under another name and perhaps in another dtype.
struct Place {
  TensorInfo info;
  std::string path;             // of the .dat file
  TensorSourcePtr source = {};  // or the other file
  std::string name_there = {};
};

class OffloadSource : public TensorSource {
 public:
  OffloadSource(const Value& index, std::string folder) : folder_(std::move(folder)) {
    for (const auto& [name, entry] : index.as_map()) add(name, entry);
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return places_.count(std::string(name)) > 0; }
  const TensorInfo& info(std::string_view name) const override { return at(name).info; }
  const std::string& path() const override { return folder_; }
  std::string_view form() const override { return "offload folder"; }

  void read(std::string_view name, const Box& box, void* target) const override {
    const Place& place = at(name);
    if (place.source) return read_other(place, box, target);
    if (!fits(box, place.info.shape)) {
      throw UsageError(Origin{"files"}, "the box ", describe(box), " is not inside '", name, "'.");
    }
    const auto whole = read_file(place);
    const Box all = whole_box(place.info.shape);
    if (numel_of(box) > 0) copy_common(whole.data(), all, target, box, element_bytes(place.info.dtype));
  }

  std::optional<TensorLocation> location(std::string_view name) const override {
    const Place& place = at(name);
    if (place.source && place.source->info(place.name_there).dtype != place.info.dtype) return std::nullopt;
    if (place.source) return place.source->location(place.name_there);
    require_size(place);
    return TensorLocation{place.path, 0, contiguous_strides(place.info.shape)};
  }

 private:
  static void read_other(const Place& place, const Box& box, void* target) {
    const Dtype there = place.source->info(place.name_there).dtype;
    if (there == place.info.dtype) return place.source->read(place.name_there, box, target);
    const auto count = static_cast<size_t>(numel_of(box));
    std::string values(count * element_bytes(there), '\0');
    place.source->read(place.name_there, box, values.data());
    convert_elements(there, values.data(), place.info.dtype, target, count);
  }

  // The dtype that the entry names, which may be another than the file's.
  Dtype dtype_of(const std::string& name, const Value& entry, Dtype there) const {
    const Value* dtype = entry.find("dtype");
    if (dtype == nullptr || dtype->is_null()) return there;
    const auto requested = dtype->is_string() ? dtype_of_torch_name(dtype->as_string()) : std::nullopt;
    if (!requested || (*requested != there && !can_convert(there, *requested))) {
      refuse(index_path(folder_), text("the entry '", name, "' asks for the dtype ", dtype->to_json(),
                                       " of a tensor of ", torch_name(there), ". Correct the entry."));
    }
    return *requested;
  }

  void add(const std::string& name, const Value& entry) {
    Place place;
    place.info.name = name;
    if (const Value* file = entry.find("safetensors_file"); file != nullptr && !file->is_null()) {
      place.source = open_once(file->as_string());
      const Value* there = entry.find("weight_name");
      place.name_there = there == nullptr || there->is_null() ? name : there->as_string();
      if (!place.source->contains(place.name_there)) {
        refuse(file->as_string(), text("has no tensor '", place.name_there, "', which the index names",
                                       did_you_mean(place.name_there, place.source->names())));
      }
      place.info = place.source->info(place.name_there);
      place.info.name = name;
      place.info.dtype = dtype_of(name, entry, place.info.dtype);
    } else {
      const Value* dtype = entry.find("dtype");
      const Value* shape = entry.find("shape");
      const auto type = dtype != nullptr && dtype->is_string() ? dtype_of_torch_name(dtype->as_string()) : std::nullopt;
      if (!type || shape == nullptr || !shape->is_list()) {
        refuse(index_path(folder_), text("the entry '", name, "' has no dtype and shape: ", entry.to_json()));
      }
      place.info.dtype = *type;
      for (const Value& size : shape->as_list()) place.info.shape.push_back(size.as_int());
      place.path = dat_path(folder_, name);
    }
    places_.emplace(name, std::move(place));
    names_.push_back(name);
  }

  TensorSourcePtr open_once(const std::string& file) {
    auto& source = opened_[file];
    if (!source) source = open_safetensors(file);
    return source;
  }

  const Place& at(std::string_view name) const {
    const auto found = places_.find(std::string(name));
    if (found != places_.end()) return found->second;
    throw UsageError(Origin{"files"}, folder_, " has no tensor '", name, "'", guess_end(name, names_));
  }

  static void require_size(const Place& place) {
    std::error_code error;
    const auto size = fs::file_size(place.path, error);
    const auto requested =
        static_cast<uint64_t>(std::max<int64_t>(bytes_of(place.info), bytes_of(place.info) == 0 ? 1 : 0));
    if (error) refuse(place.path, "the index names this file, but it cannot be read: " + error.message() + ".");
    if (size != requested)
      refuse(place.path, text("has ", size, " bytes, the index says ", requested, ". Write the folder again."));
  }

  static std::string read_file(const Place& place) {
    require_size(place);
    auto content = core::read_file(place.path);
    if (!content) refuse(place.path, "cannot be read.");
    return std::move(*content);
  }

  std::string folder_;
  std::vector<std::string> names_;
  std::map<std::string, Place> places_;
  std::map<std::string, TensorSourcePtr> opened_;
};

}  // namespace

void write_offload_weight(const std::string& folder, const TensorInfo& info, const void* data) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse(folder, "cannot be made: " + error.message() + ".");
  const auto bytes = static_cast<size_t>(bytes_of(info));
  constexpr char kZero = 0;
  write_whole(dat_path(folder, info.name), bytes == 0 ? &kZero : data, std::max<size_t>(bytes, 1));
}

void merge_offload_index(const std::string& folder, const std::vector<TensorInfo>& tensors) {
  if (tensors.empty()) return;
  const std::string path = index_path(folder);
  auto index = Value::map();
  if (const auto present = core::read_file(path)) index = Value::parse_json(*present, path);
  if (!index.is_map()) refuse(path, "is no index of offloaded tensors.");
  for (const TensorInfo& info : tensors) index[info.name] = entry_of(info);
  const std::string text = offload_index_text(index), temporary = path + ".tmp";
  write_whole(temporary, text.data(), text.size());
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) refuse(path, "cannot be replaced: " + error.message() + ".");
}

std::string offload_index_text(const Value& index) {
  return index.to_json(2);
}

bool is_offload_folder(const std::string& folder) {
  const std::string path = index_path(folder);
  if (!fs::is_directory(folder) || !fs::is_regular_file(path)) return false;
  const Value index = Value::parse_json(core::read_file(path).value_or(""), path);
  // An index of a model in several files may have that name as well; its entries are names of files.
  if (!index.is_map() || index.contains("weight_map")) return false;
  return index.size() == 0 || index.as_map()[0].second.is_map();
}

TensorSourcePtr open_offload_folder(const std::string& folder) {
  const std::string path = index_path(folder);
  const auto text = core::read_file(path);
  if (!text) refuse(path, "is not there, so the folder holds no offloaded tensors.");
  refuse_stand_in(path, *text);
  const Value index = Value::parse_json(*text, path);
  if (!index.is_map()) refuse(path, "is no index of offloaded tensors.");
  return std::make_shared<OffloadSource>(index, folder);
}

TensorSourcePtr open_offload_index(const Value& index, const std::string& folder) {
  return std::make_shared<OffloadSource>(index, folder);
}

}  // namespace hasten::files
