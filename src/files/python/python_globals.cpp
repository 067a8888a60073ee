// Which classes and functions are known, and what they give; see python_globals.h. Facts from torch/_utils.py,
// torch/serialization.py and Python's own pickle and copyreg.
#include "files/python/python_globals.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <vector>

#include "files/base/origin.h"
#include "files/python/python_text.h"
#include "hasten/files/base/box.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;
using Items = PythonValue::Items;

[[noreturn]] void fail(std::string what) {
  throw BadPickle{std::move(what)};
}

const PythonValue& arg(const Items& args, size_t index, const char* function) {
  if (index >= args.size()) fail(text(function, " has ", args.size(), " arguments, expected more than ", index));
  return args[index];
}

std::vector<int64_t> sizes_of(const PythonValue& value, const char* what) {
  if (!value.is_sequence()) fail(text(what, " is a ", value.type_name(), ", expected a tuple"));
  std::vector<int64_t> sizes;
  for (const PythonValue& size : value.as_items()) {
    if (!size.is_int() || size.is_big_int()) fail(text(what, " holds a ", size.type_name(), ", expected a 64-bit int"));
    sizes.push_back(size.as_int());
  }
  return sizes;
}

bool flag_of(const PythonValue& value) {
  return (value.is_bool() || value.is_int()) && value.as_int() != 0;
}

/// Takes the flags conj and neg from the metadata of a tensor.
void take_metadata(PythonTensor& tensor, const Items& args, size_t index) {
  if (index >= args.size() || !args[index].is_mapping()) return;
  if (const PythonValue* conj = args[index].find("conj")) tensor.conj = flag_of(*conj);
  if (const PythonValue* neg = args[index].find("neg")) tensor.neg = flag_of(*neg);
}

PythonTensor strided(const Items& args, const char* function) {
  const PythonValue& storage = arg(args, 0, function);
  if (!storage.is_tensor() || storage.as_tensor().subclass != kStorageClass) {
    fail(text(function, " is given a ", storage.type_name(), ", expected a storage"));
  }
  PythonTensor tensor{.storage = storage.as_tensor().storage, .dtype = storage.as_tensor().dtype};
  const PythonValue& offset = arg(args, 1, function);
  if (!offset.is_int() || offset.is_big_int()) fail("a storage offset is no 64-bit int");
  tensor.offset = offset.as_int();
  tensor.shape = sizes_of(arg(args, 2, function), "a tensor's size");
  tensor.stride = sizes_of(arg(args, 3, function), "a tensor's stride");
  return tensor;
}

PythonValue rebuild_tensor(const std::string& name, const Items& args) {
  PythonTensor tensor = strided(args, name.c_str());
  if (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3")
    tensor.requires_grad = flag_of(arg(args, 4, name.c_str()));
  if (name == "_rebuild_tensor_v3") {
    const PythonValue& dtype = arg(args, 6, name.c_str());
    if (dtype.kind() != Kind::kDtype)
      fail(text("_rebuild_tensor_v3 has a ", dtype.type_name(), ", expected a dtype that torch has"));
    tensor.dtype = dtype.as_dtype();
    take_metadata(tensor, args, 7);
  } else {
    take_metadata(tensor, args, 6);
  }
  if (name == "_rebuild_qtensor") tensor.unreadable = "it is quantized";
  check_tensor(tensor);
  return tensor;
}

PythonValue rebuild_meta(const Items& args) {
  const PythonValue& dtype = arg(args, 0, "_rebuild_meta_tensor_no_storage");
  if (dtype.kind() != Kind::kDtype) fail("a meta tensor has no dtype");
  PythonTensor tensor{.storage = std::make_shared<PythonStorage>(), .dtype = dtype.as_dtype()};
  tensor.storage->device = "meta";
  tensor.shape = sizes_of(arg(args, 1, "_rebuild_meta_tensor_no_storage"), "a tensor's size");
  tensor.stride = sizes_of(arg(args, 2, "_rebuild_meta_tensor_no_storage"), "a tensor's stride");
  tensor.requires_grad = args.size() > 3 && flag_of(args[3]);
  if (tensor.shape.size() != tensor.stride.size()) fail("a tensor has more sizes than strides");
  return tensor;
}

PythonValue rebuild_parameter(const Items& args) {
  const PythonValue& data = arg(args, 0, "_rebuild_parameter");
  if (!data.is_tensor()) fail(text("a parameter is made of a ", data.type_name()));
  PythonTensor tensor = data.as_tensor();
  tensor.parameter = true;
  tensor.requires_grad = flag_of(arg(args, 1, "_rebuild_parameter"));
  return tensor;
}

PythonValue rebuild_sparse(const Items& args) {
  const PythonValue& layout = arg(args, 0, "_rebuild_sparse_tensor");
  const PythonValue& data = arg(args, 1, "_rebuild_sparse_tensor");
  if (!layout.is_string() || !data.is_sequence()) fail("a sparse tensor has no layout");
  PythonTensor tensor;
  if (layout.as_string() != "torch.sparse_coo") {
    tensor.unreadable = text("it has the layout ", layout.as_string());
    return tensor;
  }
  const PythonValue &indices = arg(data.as_items(), 0, "a sparse tensor"),
                    &values = arg(data.as_items(), 1, "a sparse tensor");
  if (!indices.is_tensor() || !values.is_tensor() || indices.as_tensor().is_sparse() ||
      values.as_tensor().is_sparse()) {
    fail("a sparse tensor has no indices and values");
  }
  tensor.dtype = values.as_tensor().dtype;
  tensor.shape = sizes_of(arg(data.as_items(), 2, "a sparse tensor"), "a tensor's size");
  tensor.indices = std::make_shared<PythonTensor>(indices.as_tensor());
  tensor.values = std::make_shared<PythonTensor>(values.as_tensor());
  tensor.unreadable = "it is sparse";
  return tensor;
}

std::optional<PythonValue> rebuild_from_type(const Items& args) {
  const PythonValue &function = arg(args, 0, "_rebuild_from_type"), &type = arg(args, 1, "_rebuild_from_type");
  const PythonValue& inner = arg(args, 2, "_rebuild_from_type");
  if (inner.kind() != Kind::kTuple || type.kind() != Kind::kGlobal) return std::nullopt;
  if (function.kind() == Kind::kGlobal && function.as_object().name.starts_with("_rebuild_from_type"))
    return std::nullopt;
  auto made = call_known(function, inner);
  if (!made || !made->is_tensor()) return std::nullopt;
  PythonTensor tensor = made->as_tensor();
  const std::string name = type.as_object().qualified();
  if (name == "torch.nn.parameter.Parameter") {
    tensor.parameter = true;
  } else if (name != "torch.Tensor" && name != "torch._tensor.Tensor" && name != "torch.nn.parameter.Buffer") {
    tensor.subclass = name;
  }
  return tensor;
}

std::optional<PythonValue> rebuild_from_numpy(const Items& args) {
  const PythonValue &data = arg(args, 0, "_rebuild_device_tensor_from_numpy"),
                    &dtype = arg(args, 1, "_rebuild_device_tensor_from_numpy");
  if (data.kind() != Kind::kArray || dtype.kind() != Kind::kDtype) return std::nullopt;
  auto bytes = std::make_shared<const std::string>(data.as_array().bytes);
  auto storage = std::make_shared<PythonStorage>();
  storage->bytes = static_cast<int64_t>(bytes->size());
  storage->dtype = dtype.as_dtype();
  storage->data = bytes->data();
  storage->owner = bytes;
  PythonTensor tensor{.storage = storage, .dtype = dtype.as_dtype(), .shape = data.as_array().shape};
  tensor.stride = contiguous_strides(tensor.shape);
  tensor.requires_grad = args.size() > 3 && flag_of(args[3]);
  check_tensor(tensor);
  return tensor;
}

std::optional<PythonValue> call_torch(const std::string& module, const std::string& name, const Items& args) {
  if (module == "torch" && name == "Size") {
    return PythonValue::size(args.empty() ? std::vector<int64_t>() : sizes_of(args[0], "a torch.Size"));
  }
  if (module == "torch" && name == "device") {
    if (args.empty() || !args[0].is_string()) fail("a torch.device has no name");
    return PythonValue::device(args.size() > 1 && args[1].is_int() ? text(args[0].as_string(), ':', args[1].int_text())
                                                                   : args[0].as_string());
  }
  if (name == "_get_layout" && !args.empty() && args[0].is_string()) return args[0];
  if (name.starts_with("_rebuild_from_type")) return rebuild_from_type(args);
  if (module != "torch._utils") return std::nullopt;
  if (name == "_rebuild_tensor" || name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" ||
      name == "_rebuild_qtensor") {
    return rebuild_tensor(name, args);
  }
  if (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state") return rebuild_parameter(args);
  if (name == "_rebuild_meta_tensor_no_storage") return rebuild_meta(args);
  if (name == "_rebuild_sparse_tensor") return rebuild_sparse(args);
  if (name == "_rebuild_device_tensor_from_numpy") return rebuild_from_numpy(args);
  if (name == "_rebuild_device_tensor_from_cpu_tensor" && !args.empty() && args[0].is_tensor()) return args[0];
  return std::nullopt;
}

bool has_no_hash(Kind kind) {
  return kind == Kind::kByteArray || kind == Kind::kList || kind == Kind::kSet || kind == Kind::kDict ||
         kind == Kind::kOrderedDict || kind == Kind::kCounter || kind == Kind::kArray;
}

/// Returns the pairs of a dict, or of a sequence of pairs.
PythonValue::Pairs pairs_of_argument(const Items& args, const char* what) {
  if (args.empty()) return {};
  if (args[0].is_mapping()) return args[0].as_pairs();
  if (!args[0].is_sequence()) fail(text(what, " is made of a ", args[0].type_name()));
  PythonValue::Pairs pairs;
  for (const PythonValue& pair : args[0].as_items()) {
    if (!pair.is_sequence() || pair.size() != 2) fail(text(what, " is made of elements that are no pairs"));
    pairs.emplace_back(pair[0], pair[1]);
  }
  require_hashable_keys(pairs);
  return pairs;
}

std::optional<PythonValue> call_collections(const std::string& name, const Items& args) {
  if (name == "OrderedDict")
    return PythonValue::pairs_of(Kind::kOrderedDict, pairs_of_argument(args, "an OrderedDict"));
  if (name == "Counter") return PythonValue::pairs_of(Kind::kCounter, pairs_of_argument(args, "a Counter"));
  if (name == "defaultdict") return PythonValue::pairs_of(Kind::kDict);
  if (name == "deque") return PythonValue::list(args.empty() || !args[0].is_sequence() ? Items() : args[0].as_items());
  return std::nullopt;
}

std::optional<PythonValue> call_builtins(const std::string& name, const Items& args) {
  const auto items = [&] { return args.empty() || !args[0].is_sequence() ? Items() : args[0].as_items(); };
  if (name == "set" || name == "frozenset") {
    require_hashable_members(items());
    return PythonValue::items_of(name == "set" ? Kind::kSet : Kind::kFrozenSet, items());
  }
  if (name == "list") return PythonValue::list(items());
  if (name == "tuple") return PythonValue::tuple(items());
  if (name == "dict") return PythonValue::dict(pairs_of_argument(args, "a dict"));
  if (name == "complex" && args.size() == 2 && args[0].is_number() && args[1].is_number()) {
    return PythonValue::complex(args[0].as_double(), args[1].as_double());
  }
  if (name == "bytes" && args.empty()) return PythonValue::bytes("");
  if (name == "bytes" && args[0].kind() == Kind::kBytes) return args[0];
  if (name != "bytearray") return std::nullopt;
  if (args.empty()) return PythonValue::text_of(Kind::kByteArray, "");
  if (args[0].kind() == Kind::kBytes) return PythonValue::text_of(Kind::kByteArray, args[0].as_bytes());
  if (!args[0].is_string()) return std::nullopt;
  auto bytes = latin1_of_utf8(args[0].as_string());
  if (!bytes) fail("a bytearray holds a character above 255");
  return PythonValue::text_of(Kind::kByteArray, std::move(*bytes));
}

/// Returns the dtype of a quantised storage's bytes.
std::optional<Dtype> quantised_storage(std::string_view name) {
  if (name == "QInt8Storage") return Dtype::kInt8;
  if (name == "QInt32Storage") return Dtype::kInt32;
  if (name.starts_with("QUInt") && name.ends_with("Storage")) return Dtype::kUInt8;
  return std::nullopt;
}

}  // namespace

void require_hashable(const PythonValue& value) {
  // A tuple has the hash of its elements. One of many that share parts is looked at once.
  std::vector<const PythonValue*> left{&value};
  std::unordered_set<const void*> seen;
  while (!left.empty()) {
    const PythonValue& one = *left.back();
    left.pop_back();
    if (has_no_hash(one.kind())) fail(text("a ", one.type_name(), " cannot be a key of a dict or a member of a set"));
    if (one.kind() != Kind::kTuple || !seen.insert(&one.as_items()).second) continue;
    for (const PythonValue& element : one.as_items()) left.push_back(&element);
  }
}

void require_hashable_keys(const PythonValue::Pairs& pairs) {
  for (const auto& [key, value] : pairs) require_hashable(key);
}

void require_hashable_members(const PythonValue::Items& items) {
  for (const PythonValue& item : items) require_hashable(item);
}

PythonValue storage_value(std::shared_ptr<PythonStorage> storage) {
  PythonTensor tensor{.dtype = storage->dtype};
  tensor.shape = {storage->bytes / static_cast<int64_t>(element_bytes(storage->dtype))};
  tensor.stride = {1};
  tensor.subclass = kStorageClass;
  tensor.storage = std::move(storage);
  return tensor;
}

PythonValue global_of(std::string module, std::string name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRenamed = {
      {{"__builtin__", "builtins"}, {"copy_reg", "copyreg"}, {"UserDict", "collections"}, {"cPickle", "pickle"}}};
  for (const auto& [old, present] : kRenamed) {
    if (module == old) module = present;
  }
  if (module == "torch") {
    if (const auto dtype = dtype_of_torch_name(name)) return PythonValue::dtype(*dtype);
  }
  return PythonValue::global(std::move(module), std::move(name));
}

std::optional<PythonValue> call_known(const PythonValue& callable, const PythonValue& args) {
  if (callable.kind() != Kind::kGlobal) return std::nullopt;
  const auto& [module, name] = std::tie(callable.as_object().module, callable.as_object().name);
  const Items& items = args.as_items();
  if (module == "collections") return call_collections(name, items);
  if (module == "builtins") return call_builtins(name, items);
  if (module == "torch" || module.starts_with("torch.")) return call_torch(module, name, items);
  if (is_numpy(module)) return call_numpy(name, items);
  if (module == "_codecs" && name == "encode" && !items.empty() && items[0].is_string()) {
    auto bytes = latin1_of_utf8(items[0].as_string());
    if (!bytes) fail("bytes hold a character above 255");
    return PythonValue::bytes(std::move(*bytes));
  }
  if (module == "copyreg" && name == "_reconstructor" && !items.empty() && items[0].kind() == Kind::kGlobal) {
    PythonValue::Object object{.module = items[0].as_object().module, .name = items[0].as_object().name};
    object.args = PythonValue::tuple();
    return PythonValue::object(std::move(object));
  }
  return std::nullopt;
}

void build(PythonValue& value, PythonValue state) {
  if (value.is_mapping()) {
    if (state.is_mapping()) value.set_attributes(std::move(state));
    return;
  }
  if (is_numpy_array_under_construction(value)) {
    build_numpy_array(value, state);
    return;
  }
  if (value.is_tensor() || value.is_sequence()) return;  // attributes of a tensor or a list of a subclass
  if (!value.is_object()) fail(text("it gives a state to a ", value.type_name()));
  value.as_object().state = std::move(state);
}

void check_tensor(const PythonTensor& tensor) {
  if (tensor.shape.size() != tensor.stride.size()) {
    fail(text("a tensor has ", tensor.shape.size(), " sizes and ", tensor.stride.size(), " strides"));
  }
  const int64_t item = static_cast<int64_t>(element_bytes(tensor.dtype));
  const int64_t numel = tensor.storage->bytes / item;
  int64_t last = tensor.offset, count = 1;
  bool empty = false, bad = tensor.offset < 0;
  for (size_t d = 0; d < tensor.shape.size() && !bad; ++d) {
    int64_t step = 0;
    bad = tensor.shape[d] < 0 || tensor.stride[d] < 0 ||
          __builtin_mul_overflow(std::max<int64_t>(tensor.shape[d], 1), count, &count);
    empty = empty || tensor.shape[d] == 0;
    if (bad || tensor.shape[d] <= 1) continue;
    bad = __builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &step) ||
          __builtin_add_overflow(last, step, &last);
  }
  const bool outside = tensor.storage->device != "meta" && (empty ? tensor.offset > numel : last >= numel);
  if (bad || outside) {
    fail(text("a tensor of size [", join(tensor.shape), "], stride [", join(tensor.stride), "] and offset ",
              tensor.offset, " does not fit its storage of ", numel, " elements"));
  }
}

std::optional<Dtype> dtype_of_storage_type(const std::string& name) {
  if (name == "UntypedStorage" || name == "_UntypedStorage") return Dtype::kUInt8;
  if (const auto dtype = dtype_of_storage_class(name)) return dtype;
  return quantised_storage(name);
}

}  // namespace hasten::files
