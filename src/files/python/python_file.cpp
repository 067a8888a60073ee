// The zip form, the legacy form and bare pickles; see python_file.h. Facts from torch/serialization.py.
#include "hasten/files/python/python_file.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "files/python/pickle_reader.h"
#include "files/python/python_globals.h"
#include "files/python/zip_reader.h"
#include "hasten/files/base/stand_in.h"
#include "hasten/files/disk/mapped_file.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;

[[noreturn]] void bad_id(std::string what) {
  throw BadPickle{std::move(what)};
}

/// A persistent id ("storage", class, key, location, numel[, view]).
struct StorageId {
  Dtype dtype = Dtype::kUInt8;
  std::string key = {}, location = {};
  int64_t bytes = 0;
  const PythonValue* view = nullptr;
};

int64_t checked_bytes(const PythonValue& numel, Dtype dtype) {
  int64_t bytes = 0;
  if (!numel.is_int() || numel.is_big_int() || numel.as_int() < 0 ||
      __builtin_mul_overflow(numel.as_int(), static_cast<int64_t>(element_bytes(dtype)), &bytes)) {
    bad_id("a storage's number of elements is no size");
  }
  return bytes;
}

StorageId parse_id(const PythonValue& id) {
  const auto& items = id.as_items();
  if (items.size() < 5 || !items[2].is_string() || !items[3].is_string()) bad_id("a storage's id has another form");
  if (items[1].kind() != Kind::kGlobal) bad_id(text("a storage's class is a ", items[1].type_name()));
  const auto dtype = dtype_of_storage_type(items[1].as_object().name);
  if (!dtype) bad_id(text("the storage class '", items[1].as_object().qualified(), "' is unknown"));
  StorageId storage{*dtype, items[2].as_string(), items[3].as_string(), checked_bytes(items[4], *dtype)};
  if (items.size() > 5 && items[5].kind() == Kind::kTuple) storage.view = &items[5];
  return storage;
}

bool is_storage_id(const PythonValue& id) {
  return id.kind() == Kind::kTuple && id.size() > 0 && id[size_t{0}].is_string() &&
         id[size_t{0}].as_string() == "storage";
}

/// The bytes of a file with their owner and their place.
struct Memory {
  std::string_view bytes = {};
  std::shared_ptr<const void> owner = {};
  std::string path = {};
  uint64_t offset = 0;
};

// ---- zip ------------------------------------------------------------------------------------------------------------

/// A deflated record, inflated once when it is first read.
class Inflated {
 public:
  Inflated(std::shared_ptr<const ZipReader> zip, const ZipRecord& record) : zip_(std::move(zip)), record_(record) {}
  void read(uint64_t begin, uint64_t size, void* target) {
    std::call_once(once_, [this] { bytes_ = zip_->read(record_); });
    std::copy_n(bytes_.data() + begin, size, static_cast<char*>(target));
  }

 private:
  std::shared_ptr<const ZipReader> zip_;
  const ZipRecord& record_;
  std::once_flag once_;
  std::string bytes_;
};

class ZipFile {
 public:
  explicit ZipFile(const Memory& memory)
      : memory_(memory), zip_(std::make_shared<const ZipReader>(memory.bytes, memory.path)) {
    for (const ZipRecord& record : zip_->records()) records_.emplace(record.name, &record);
    for (const ZipRecord& record : zip_->records()) {
      const std::string_view name = record.name;
      const size_t slash = name.find('/');
      if (slash != std::string_view::npos && name.substr(slash) == "/data.pkl") root_ = name.substr(0, slash + 1);
    }
  }

  Pickle read() {
    const ZipRecord* pickle = find("data.pkl");
    if (pickle == nullptr) fail_data(memory_.path, "this zip file has no data.pkl, so torch.save did not write it.");
    if (find("constants.pkl") != nullptr) {
      fail_data(memory_.path,
                "it is a TorchScript archive (torch.jit.save, or torch::save of C++). Read it with torch::load, or "
                "save a state_dict with torch.save.");
    }
    read_byte_order();
    const std::string inflated = pickle->deflated ? zip_->read(*pickle) : std::string();
    const std::string_view bytes = pickle->deflated ? std::string_view(inflated) : zip_->view(*pickle);
    const PickleOptions options{.persistent_load = [this](const PythonValue& id) { return load(id); }};
    return read_pickle(bytes, memory_.path, options, memory_.offset + pickle->offset);
  }

 private:
  const ZipRecord* find(const std::string& name) const {
    const auto found = records_.find(root_ + name);
    return found == records_.end() ? nullptr : found->second;
  }

  void read_byte_order() {
    const ZipRecord* record = find("byteorder");
    if (record == nullptr) return;
    const std::string order = record->size <= 16 ? zip_->read(*record) : "?";
    if (order != "little" && order != "big")
      fail_data(memory_.path, "its byte order is '", order, "', expected little or big.");
    swapped_ = order == "big";
  }

  PythonValue load(const PythonValue& id) {
    if (!is_storage_id(id)) bad_id("a persistent id is no storage's");
    const StorageId requested = parse_id(id);
    const auto found = storages_.find(requested.key);
    if (found != storages_.end()) {
      // Tensors of several dtypes may view one untyped storage; each has it with its own class.
      if (found->second->bytes != requested.bytes) bad_id(text("storage '", requested.key, "' has two sizes"));
      PythonValue value = storage_value(found->second);
      if (requested.dtype == found->second->dtype) return value;
      PythonTensor tensor = value.as_tensor();
      tensor.dtype = requested.dtype;
      tensor.shape = {requested.bytes / static_cast<int64_t>(element_bytes(requested.dtype))};
      return tensor;
    }
    auto storage = std::make_shared<PythonStorage>();
    storage->key = requested.key;
    storage->device = requested.location;
    storage->dtype = requested.dtype;
    storage->bytes = requested.bytes;
    storage->swapped = swapped_;
    if (requested.location != "meta") attach(*storage);
    storages_.emplace(requested.key, storage);
    return storage_value(std::move(storage));
  }

  void attach(PythonStorage& storage) {
    const ZipRecord* record = find(text("data/", storage.key));
    if (record == nullptr) bad_id(text("storage '", storage.key, "' is not in the file"));
    if (record->size < static_cast<uint64_t>(storage.bytes)) {
      bad_id(text("storage '", storage.key, "' has ", record->size, " bytes, expected ", storage.bytes));
    }
    storage.owner = memory_.owner;
    if (record->deflated) {
      auto inflated = std::make_shared<Inflated>(zip_, *record);
      storage.read = [inflated](uint64_t begin, uint64_t size, void* target) { inflated->read(begin, size, target); };
      return;
    }
    storage.data = zip_->view(*record).data();
    storage.path = memory_.path;
    storage.offset = memory_.offset + record->offset;
  }

  Memory memory_;
  std::shared_ptr<const ZipReader> zip_;
  std::unordered_map<std::string, const ZipRecord*> records_;
  std::string root_;
  bool swapped_ = false;
  std::unordered_map<std::string, std::shared_ptr<PythonStorage>> storages_;
};

// ---- the form before torch 1.6 --------------------------------------------------------------------------------------

constexpr std::string_view kLegacyMagic =
    "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";  // the integer 0x1950a86a20f9469cfc6c

class LegacyFile {
 public:
  explicit LegacyFile(const Memory& memory) : memory_(memory) {}

  Pickle read() {
    next({});  // the magic number
    const Pickle protocol = next({});
    if (!protocol.value.is_int() || protocol.value.int_text() != "1001") fail("its protocol is not 1001");
    const Pickle system = next({});
    if (const PythonValue* little = system.value.find("little_endian"))
      swapped_ = little->is_bool() && !little->as_bool();
    Pickle object = next({.persistent_load = [this](const PythonValue& id) { return load(id); }});
    const Pickle keys = next({});
    if (!keys.value.is_sequence()) fail("its list of storages is missing");
    for (const PythonValue& key : keys.value.as_items()) {
      if (!key.is_string()) fail("a storage's key is no text");
      read_storage(key.as_string());
    }
    for (const auto& [key, root] : roots_) {
      if (root->data == nullptr && root->bytes > 0) fail(text("storage '", key, "' is not in the file"));
    }
    for (const View& view : views_) {
      view.storage->data = view.root->data + view.begin;
      view.storage->owner = view.root->owner;
      view.storage->path = view.root->path;
      view.storage->offset = view.root->offset + static_cast<uint64_t>(view.begin);
    }
    return object;
  }

 private:
  struct View {
    std::shared_ptr<PythonStorage> storage, root;
    int64_t begin;
  };

  [[noreturn]] void fail(const std::string& what) const { fail_data(memory_.path, what, ". Get the file again."); }

  Pickle next(const PickleOptions& options) {
    Pickle pickle = read_pickle(memory_.bytes.substr(at_), memory_.path, options, memory_.offset + at_);
    at_ += pickle.size;
    return pickle;
  }

  PythonValue load(const PythonValue& id) {
    if (id.kind() == Kind::kTuple && id.size() >= 2 && id[size_t{0}].is_string() &&
        id[size_t{0}].as_string() == "module")
      return id[1];
    if (!is_storage_id(id)) bad_id("a persistent id is no storage's");
    const StorageId requested = parse_id(id);
    auto& root = roots_[requested.key];
    if (root == nullptr) {
      root = std::make_shared<PythonStorage>();
      root->key = requested.key;
      root->device = requested.location;
      root->dtype = requested.dtype;
      root->bytes = requested.bytes;
      root->swapped = swapped_;
    } else if (root->bytes != requested.bytes) {
      bad_id(text("storage '", requested.key, "' has two sizes"));
    }
    return storage_value(requested.view == nullptr ? root : view_of(root, requested));
  }

  std::shared_ptr<PythonStorage> view_of(const std::shared_ptr<PythonStorage>& root, const StorageId& requested) {
    const auto& view = requested.view->as_items();
    if (view.size() < 3 || !view[0].is_string()) bad_id("a view of a storage has another form");
    const int64_t begin = checked_bytes(view[1], requested.dtype), bytes = checked_bytes(view[2], requested.dtype);
    if (begin > root->bytes || bytes > root->bytes - begin) bad_id("a view of a storage goes beyond it");
    auto& storage = by_view_[view[0].as_string()];
    if (storage == nullptr) {
      storage = std::make_shared<PythonStorage>(*root);
      storage->key = view[0].as_string();
      storage->bytes = bytes;
      views_.push_back({storage, root, begin});
    }
    return storage;
  }

  void read_storage(const std::string& key) {
    const auto found = roots_.find(key);
    if (found == roots_.end()) fail(text("storage '", key, "' belongs to no tensor"));
    PythonStorage& storage = *found->second;
    if (memory_.bytes.size() - at_ < 8) fail(text("it ends before storage '", key, "'"));
    uint64_t numel = 0;
    for (size_t i = 8; i-- > 0;)
      numel = numel << 8 | static_cast<unsigned char>(memory_.bytes[at_ + (swapped_ ? 7 - i : i)]);
    at_ += 8;
    const uint64_t expected = static_cast<uint64_t>(storage.bytes) / element_bytes(storage.dtype);
    if (numel != expected) fail(text("storage '", key, "' has ", numel, " elements, expected ", expected));
    if (memory_.bytes.size() - at_ < static_cast<uint64_t>(storage.bytes))
      fail(text("it ends within storage '", key, "'"));
    storage.data = memory_.bytes.data() + at_;
    storage.owner = memory_.owner;
    storage.path = memory_.path;
    storage.offset = memory_.offset + at_;
    at_ += static_cast<size_t>(storage.bytes);
  }

  Memory memory_;
  size_t at_ = 0;
  bool swapped_ = false;
  std::unordered_map<std::string, std::shared_ptr<PythonStorage>> roots_, by_view_;
  std::vector<View> views_;
};

bool is_legacy(std::string_view bytes) {
  return bytes.size() > 14 && bytes[0] == '\x80' && bytes.substr(2, kLegacyMagic.size()) == kLegacyMagic;
}

void refuse_other_forms(const Memory& memory) {
  if (memory.bytes.empty()) fail_data(memory.path, "the file is empty. Get it again.");
  if (memory.bytes.size() > 262 && memory.bytes.substr(257, 5) == "ustar") {
    fail_data(memory.path,
              "it is a tar file, as PyTorch before 0.1.10 wrote. Load and save it anew with a later PyTorch.");
  }
  refuse_stand_in(memory.path, memory.bytes);
}

}  // namespace

PythonFile PythonFile::open(const std::string& path) {
  auto file = MappedFile::open(path);
  const std::string_view bytes = file->bytes();
  return parse(bytes, std::move(file), path, 0);
}

PythonFile PythonFile::parse(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& path,
                             uint64_t offset) {
  const Memory memory{bytes, std::move(owner), path, offset};
  refuse_other_forms(memory);
  PythonFile file;
  file.path_ = path;
  Pickle pickle;
  if (ZipReader::is_zip(bytes)) {
    file.form_ = Form::kZip;
    pickle = ZipFile(memory).read();
  } else if (is_legacy(bytes)) {
    file.form_ = Form::kLegacy;
    pickle = LegacyFile(memory).read();
  } else {
    pickle = read_pickle(bytes, path, {}, offset);
  }
  file.value_ = std::move(pickle.value);
  file.unknown_names_ = std::move(pickle.unknown_names);
  return file;
}

bool PythonFile::is_python_file(const std::string& path) {
  const PosixFile file = PosixFile::open_to_read(path);
  std::string head(std::min<uint64_t>(file.size(), 4), '\0');
  file.read_at(0, head.data(), head.size());
  return ZipReader::is_zip(head) || (head.size() >= 2 && head[0] == '\x80' && head[1] >= 0 && head[1] <= 5);
}

}  // namespace hasten::files
