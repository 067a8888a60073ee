// DCP's metadata objects as inert values, and its chunks as pieces; see dcp_folder.h.
#include "hasten/files/folders/dcp_folder.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "files/base/pieces.h"
#include "files/python/tensor_files.h"
#include "hasten/core/sentence.h"
#include "hasten/files/disk/mapped_file.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

struct ChunkPlace {
  std::string file = {};
  uint64_t offset = 0, length = 0;
  Box box = {};
};

/// The .distcp files of a folder, mapped when they are first needed.
class ChunkFiles {
 public:
  explicit ChunkFiles(std::string folder) : folder_(std::move(folder)) {}

  PythonFile read(const ChunkPlace& chunk) const {
    const auto file = mapped(chunk.file);
    if (chunk.offset > file->bytes().size() || chunk.length > file->bytes().size() - chunk.offset) {
      fail_data(file->path(), "it has ", file->bytes().size(), " bytes, but a chunk lies at ", chunk.offset, " with ",
                chunk.length, ": it is truncated. Get the folder again.");
    }
    return PythonFile::parse(file->bytes().substr(chunk.offset, chunk.length), file, file->path(), chunk.offset);
  }

 private:
  std::shared_ptr<const MappedFile> mapped(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    auto& file = mapped_[name];
    if (file == nullptr) file = MappedFile::open((fs::path(folder_) / name).string());
    return file;
  }

  std::string folder_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const MappedFile>> mapped_;
};

class DcpSource : public NamedSource {
 public:
  DcpSource(std::string path, std::shared_ptr<const ChunkFiles> files)
      : NamedSource(std::move(path)), files_(std::move(files)) {}
  std::string_view form() const override { return "dcp"; }

  void add_tensor(TensorInfo info, std::vector<ChunkPlace> chunks) {
    std::vector<FilePiece> pieces;
    for (const ChunkPlace& chunk : chunks) pieces.push_back({nullptr, 0, chunk.box});
    check_cover(path(), info, pieces);
    add(std::move(info));
    chunks_.push_back(std::move(chunks));
  }

  std::optional<TensorLocation> location(std::string_view name) const override {
    const auto& chunks = chunks_[index_of(name)];
    if (chunks.size() != 1) return std::nullopt;
    return plain_location(tensor_of(index_of(name), chunks.front()));
  }

  using NamedSource::remark;

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    const size_t item = element_bytes(info(names()[index]).dtype);
    for (const ChunkPlace& chunk : chunks_[index]) {
      read_common(chunk.box, box, item, target,
                  [&](const Box& local, void* into) { opened_.read(tensor_of(index, chunk), local, into); });
    }
  }

 private:
  PythonTensor tensor_of(size_t index, const ChunkPlace& chunk) const {
    const TensorInfo& requested = info(names()[index]);
    const PythonFile file = files_->read(chunk);
    if (!file.value().is_tensor() || file.value().as_tensor().storage == nullptr) {
      fail_data(file.path(), "the chunk of '", requested.name, "' at ", chunk.offset, " is a ",
                file.value().type_name(), ", expected a tensor.");
    }
    const PythonTensor& tensor = file.value().as_tensor();
    if (tensor.shape != chunk.box.size || tensor.dtype != requested.dtype) {
      fail_data(file.path(), "the chunk of '", requested.name, "' at ", chunk.offset, " is ", torch_name(tensor.dtype),
                " [", join(tensor.shape), "], expected ", torch_name(requested.dtype), " [", join(chunk.box.size),
                "].");
    }
    return tensor;
  }

  std::shared_ptr<const ChunkFiles> files_;
  TensorFiles opened_;
  std::vector<std::vector<ChunkPlace>> chunks_;
};

const PythonValue& attribute(const PythonValue& value, const char* name) {
  const PythonValue* found = value.is_object() ? value.as_object().attribute(name) : nullptr;
  if (found == nullptr) throw DataError(kOrigin, "", "a ", value.type_name(), " has no '", name, "'.");
  return *found;
}

std::vector<int64_t> chunk_sizes(const PythonValue& value) {
  std::vector<int64_t> sizes;
  for (const PythonValue& size : value.as_items()) {
    sizes.push_back(size.as_int());
    if (sizes.back() < 0) throw DataError(kOrigin, "", "a size is ", sizes.back());
  }
  return sizes;
}

Dtype chunk_dtype(const PythonValue& properties) {
  if (properties.is_object()) {
    const PythonValue& state = properties.as_object().state;
    if (state.is_sequence() && state.size() > 0) return state[size_t{0}].as_dtype();
  }
  return attribute(properties, "dtype").as_dtype();
}

std::string joined(const std::vector<DcpKey>& path, size_t from) {
  std::string name;
  for (size_t i = from; i < path.size(); ++i) {
    if (i > from) name += '.';
    name += std::holds_alternative<std::string>(path[i]) ? std::get<std::string>(path[i])
                                                         : std::to_string(std::get<int64_t>(path[i]));
  }
  return name;
}

}  // namespace

/// Reads the parts of `.metadata` into a DcpFolder.
struct DcpReader {
  DcpFolder& folder;
  const PythonValue& metadata;
  std::shared_ptr<const ChunkFiles> files = std::make_shared<const ChunkFiles>(folder.folder_);
  std::map<std::string, std::vector<ChunkPlace>> places = {};
  std::vector<std::string> planned = {};  // flat keys as they were saved; the metadata's follow the ranks

  void read_paths() {
    const PythonValue& planner = attribute(metadata, "planner_data");
    if (!planner.is_mapping()) return;
    for (const auto& [flat, path] : planner.as_pairs()) {
      planned.push_back(flat.as_string());
      auto& keys = folder.paths_[flat.as_string()];
      for (const PythonValue& key : path.as_items()) {
        key.is_string() ? keys.emplace_back(key.as_string()) : keys.emplace_back(key.as_int());
      }
    }
  }

  void read_places() {
    for (const auto& [index, info] : attribute(metadata, "storage_data").as_pairs()) {
      const PythonValue* offset = index.is_object() ? index.as_object().attribute("offset") : nullptr;
      ChunkPlace place{.file = attribute(info, "relative_path").as_string(),
                       .offset = attribute(info, "offset").as_uint(),
                       .length = attribute(info, "length").as_uint()};
      if (place.file.empty() || place.file.find('/') != std::string::npos || place.file == ".." ||
          place.file.find('\0') != std::string::npos) {
        throw DataError(kOrigin, "", "a chunk lies in '", place.file, "', which is not inside the folder.");
      }
      const PythonValue* transforms = info.as_object().attribute("transform_descriptors");
      if (transforms != nullptr && transforms->size() > 0) {
        throw DataError(kOrigin, "",
                        "its chunks are compressed or encrypted (transform_descriptors). Save it without extensions.");
      }
      if (offset != nullptr && !offset->is_none()) place.box.offset = chunk_sizes(*offset);
      places[attribute(index, "fqn").as_string()].push_back(std::move(place));
    }
  }

  /// Returns true if all tensors lie under one first key.
  bool has_single_key(const PythonValue& entries) const {
    const DcpKey* first = nullptr;
    for (const auto& [flat, entry] : entries.as_pairs()) {
      if (entry.as_object().attribute("chunks") == nullptr) continue;
      const auto path = folder.paths_.find(flat.as_string());
      if (path == folder.paths_.end() || path->second.size() < 2) return false;
      if (first != nullptr && *first != path->second.front()) return false;
      first = &path->second.front();
    }
    return first != nullptr;
  }

  std::vector<ChunkPlace> chunks_of(const std::string& flat, const PythonValue& chunks) {
    std::vector<ChunkPlace> found;
    auto& all = places[flat];
    for (const PythonValue& chunk : chunks.as_items()) {
      const Box box{chunk_sizes(attribute(chunk, "offsets")), chunk_sizes(attribute(chunk, "sizes"))};
      if (box.offset.size() != box.size.size())
        throw DataError(kOrigin, "", "a chunk of '", flat, "' has more offsets than sizes.");
      const auto place =
          std::find_if(all.begin(), all.end(), [&](const ChunkPlace& one) { return one.box.offset == box.offset; });
      if (place == all.end())
        throw DataError(kOrigin, "", "the chunk of '", flat, "' at ", describe(box), " lies in no file.");
      found.push_back(*place);
      found.back().box = box;
    }
    return found;
  }

  // The entries in the order in which the state_dict had them; those that no path names come last.
  std::vector<std::pair<std::string, const PythonValue*>> in_saved_order(const PythonValue& entries) const {
    std::vector<std::pair<std::string, const PythonValue*>> sorted;
    for (const auto& [flat, entry] : entries.as_pairs()) {
      if (!entry.is_object())
        throw DataError(kOrigin, "", "the entry of '", flat.as_string(), "' is a ", entry.type_name());
      sorted.emplace_back(flat.as_string(), &entry);
    }
    std::unordered_map<std::string_view, size_t> place;
    for (size_t i = 0; i < planned.size(); ++i) place.emplace(planned[i], i);
    const auto place_of = [&](const std::string& flat) {
      const auto found = place.find(flat);
      return found == place.end() ? planned.size() : found->second;
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const auto& one, const auto& other) { return place_of(one.first) < place_of(other.first); });
    return sorted;
  }

  void read_entries(bool open_single_key) {
    const PythonValue& entries = attribute(metadata, "state_dict_metadata");
    const auto sorted = in_saved_order(entries);
    const size_t from = open_single_key && has_single_key(entries) ? 1 : 0;
    auto source = std::make_shared<DcpSource>(folder.folder_, files);
    for (const auto& [key, held] : sorted) {
      const PythonValue& entry = *held;
      const PythonValue* chunks = entry.as_object().attribute("chunks");
      if (chunks == nullptr) {
        const auto place = places.find(key);
        if (place != places.end() && place->second.size() == 1) {
          const ChunkPlace& one = place->second.front();
          folder.values_[key] = {one.file, one.offset, one.length, {}};
          folder.order_.emplace_back(key, "");
        }
        continue;
      }
      const auto path = folder.paths_.find(key);
      TensorInfo info{
          .name = path == folder.paths_.end() ? key : joined(path->second, std::min(from, path->second.size() - 1)),
          .dtype = chunk_dtype(attribute(entry, "properties")),
          .shape = chunk_sizes(attribute(entry, "size"))};
      folder.order_.emplace_back(key, info.name);
      source->add_tensor(std::move(info), chunks_of(key, *chunks));
    }
    if (from == 1) source->remark(text("the state_dict in '", folder.folder_, "' has one top key, which is opened."));
    folder.tensors_ = std::move(source);
  }
};

DcpFolder DcpFolder::open(const std::string& path, const DcpOptions& options) {
  DcpFolder folder;
  folder.folder_ = path;
  const std::string metadata = (fs::path(path) / ".metadata").string();
  const PythonFile file = PythonFile::open(metadata);
  try {
    DcpReader reader{folder, file.value()};
    reader.read_paths();
    reader.read_places();
    reader.read_entries(options.open_single_key);
  } catch (const DataError& error) {
    if (!error.path().empty()) throw;
    fail_data(metadata, "it is no good metadata of DCP: ", inner_words(error.what()), ".");
  }
  return folder;
}

bool DcpFolder::is_dcp(const std::string& folder) {
  return fs::is_regular_file(fs::path(folder) / ".metadata");
}

std::map<std::string, PythonValue> DcpFolder::values() const {
  std::map<std::string, PythonValue> values;
  const ChunkFiles files(folder_);
  for (const auto& [key, chunk] : values_)
    values[key] = files.read({chunk.file, chunk.offset, chunk.length, {}}).value();
  return values;
}

namespace {

/// Puts `value` at `path` below `root`, making dicts for text keys and for numbers alike.
void put_at(PythonValue& root, const std::vector<DcpKey>& path, PythonValue value) {
  PythonValue* at = &root;
  for (size_t i = 0; i < path.size(); ++i) {
    const PythonValue key = std::holds_alternative<std::string>(path[i]) ? PythonValue(std::get<std::string>(path[i]))
                                                                         : PythonValue(std::get<int64_t>(path[i]));
    if (i + 1 == path.size()) {
      at->set(key, std::move(value));
      return;
    }
    const PythonValue* next = key.is_string() ? at->find(std::string_view(key.as_string())) : at->find(key.as_int());
    if (next == nullptr || !next->is_mapping()) {
      at->set(key, PythonValue::dict());
      next = key.is_string() ? at->find(std::string_view(key.as_string())) : at->find(key.as_int());
    }
    at = const_cast<PythonValue*>(next);
  }
}

/// Turns dicts whose keys are the numbers 0 to n - 1, in any order, into lists, from the leaves on. Keys of saved dicts
/// are texts, so numbers are places in lists.
PythonValue with_lists(const PythonValue& value) {
  if (!value.is_mapping()) return value;
  PythonValue::Pairs pairs;
  PythonValue::Items items(value.size());
  std::vector<bool> there(value.size(), false);
  bool list = value.size() > 0;
  for (const auto& [key, child] : value.as_pairs()) {
    pairs.emplace_back(key, with_lists(child));
    list = list && key.is_int() && key.as_int() >= 0 && key.as_int() < static_cast<int64_t>(items.size());
    if (!list) continue;
    const auto place = static_cast<size_t>(key.as_int());
    list = !there[place];
    there[place] = true;
    items[place] = pairs.back().second;
  }
  return list ? PythonValue::list(std::move(items)) : PythonValue::dict(std::move(pairs));
}

}  // namespace

PythonValue DcpFolder::state_dict() const {
  PythonValue root = PythonValue::dict();
  const auto path_of = [&](const std::string& flat) {
    const auto found = paths_.find(flat);
    return found == paths_.end() || found->second.empty() || found->second.size() > 100 ? std::vector<DcpKey>{flat}
                                                                                        : found->second;
  };
  std::map<std::string, PythonValue> others = values();
  for (const auto& [flat, name] : order_) {
    if (name.empty()) {
      put_at(root, path_of(flat), std::move(others[flat]));
      continue;
    }
    const TensorInfo& info = tensors_->info(name);
    auto storage = std::make_shared<PythonStorage>();
    storage->dtype = info.dtype;
    storage->bytes = bytes_of(info);
    storage->read = [source = tensors_, name = name](uint64_t begin, uint64_t size, void* target) {
      const TensorInfo& tensor = source->info(name);
      const auto item = static_cast<int64_t>(element_bytes(tensor.dtype));
      const auto first = static_cast<int64_t>(begin) / item;
      char* to = static_cast<char*>(target);
      for (const Box& box : boxes_of_range(tensor.shape, first, first + static_cast<int64_t>(size) / item)) {
        source->read(name, box, to);
        to += numel_of(box) * item;
      }
    };
    PythonTensor tensor{.storage = std::move(storage), .dtype = info.dtype, .shape = info.shape};
    tensor.stride = contiguous_strides(info.shape);
    put_at(root, path_of(flat), std::move(tensor));
  }
  return with_lists(root);
}

}  // namespace hasten::files
