// Files for Python: any checkpoint to objects of Python's, and such objects to a file that torch.load reads.
//
// Nothing in a file is executed. Calls that a file asks Python for come as hasten.checkpoint.Inert.
#include "hasten/files/python/python_file.h"

#include <torch/types.h>

#include <complex>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/open_source.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

using files::PythonStorage;
using files::PythonTensor;
using files::PythonValue;
using Kind = PythonValue::Kind;

constexpr Origin kCheckpoint{"checkpoint"};

// ---- From a file.

at::Tensor read(const PythonTensor& tensor) {
  if (tensor.is_sparse()) return at::sparse_coo_tensor(read(*tensor.indices), read(*tensor.values), tensor.shape);
  if (!tensor.is_meta()) return checkpoint::tensor_of(tensor);
  const auto options = at::TensorOptions().dtype(checkpoint::torch_dtype(tensor.dtype));
  return at::empty(tensor.shape, options.device(at::kMeta));
}

py::list list_of(const PythonValue::Items& items) {
  py::list list;
  for (const PythonValue& item : items) list.append(to_python(item));
  return list;
}

py::dict dict_of(const PythonValue::Pairs& pairs) {
  py::dict dict;
  for (const auto& [key, value] : pairs) dict[to_python(key)] = to_python(value);
  return dict;
}

py::object inert(const PythonValue& value) {
  const auto& object = value.as_object();
  return py::module_::import("hasten.checkpoint")
      .attr("Inert")(object.qualified(), to_python(object.args), to_python(object.state), list_of(object.items),
                     dict_of(object.pairs));
}

py::object array_of(const files::PythonArray& array) {
  const auto numpy = py::module_::import("numpy");
  const py::object flat = numpy.attr("frombuffer")(py::bytes(array.bytes), "<" + array.dtype);
  return flat.attr("reshape")(py::cast(array.shape)).attr("copy")();
}

py::object tensor_of(const PythonTensor& tensor) {
  const py::object plain = py::cast(read(tensor));
  if (!tensor.parameter) return tensor.requires_grad ? plain.attr("requires_grad_")() : plain;
  return py::module_::import("torch.nn").attr("Parameter")(plain, tensor.requires_grad);
}

py::object int_of(const PythonValue& value) {
  if (!value.is_big_int()) return py::int_(value.as_int());
  return py::reinterpret_steal<py::object>(PyLong_FromString(value.int_text().c_str(), nullptr, 10));
}

}  // namespace

py::object to_python(const PythonValue& value) {
  const auto torch = [](const char* name) { return py::module_::import("torch").attr(name); };
  switch (value.kind()) {
    case Kind::kNone:
      return py::none();
    case Kind::kBool:
      return py::bool_(value.as_bool());
    case Kind::kInt:
      return int_of(value);
    case Kind::kFloat:
      return py::float_(value.as_double());
    case Kind::kComplex:
      return py::cast(std::complex<double>(value.as_complex().first, value.as_complex().second));
    case Kind::kString:
      return py::str(value.as_string());
    case Kind::kBytes:
      return py::bytes(value.as_bytes());
    case Kind::kByteArray:
      return py::bytearray(value.as_bytes());
    case Kind::kList:
      return list_of(value.as_items());
    case Kind::kTuple:
      return py::tuple(list_of(value.as_items()));
    case Kind::kSize:
      return torch("Size")(list_of(value.as_items()));
    case Kind::kSet:
      return py::set(list_of(value.as_items()));
    case Kind::kFrozenSet:
      return py::frozenset(list_of(value.as_items()));
    case Kind::kDict:
      return dict_of(value.as_pairs());
    case Kind::kOrderedDict:
      return py::module_::import("collections").attr("OrderedDict")(dict_of(value.as_pairs()));
    case Kind::kCounter:
      return py::module_::import("collections").attr("Counter")(dict_of(value.as_pairs()));
    case Kind::kTensor:
      return tensor_of(value.as_tensor());
    case Kind::kArray:
      return array_of(value.as_array());
    case Kind::kDtype:
      return torch(std::string(files::torch_name(value.as_dtype())).c_str());
    case Kind::kDevice:
      return torch("device")(value.as_string());
    case Kind::kGlobal:
    case Kind::kObject:
      return inert(value);
    case Kind::kCycle:
      return py::module_::import("hasten.checkpoint").attr("Inert")("a value that contains itself");
  }
  throw InternalError(kCheckpoint, "a value of kind ", static_cast<int>(value.kind()), " has no form in Python.");
}

namespace {

// ---- To a file.

/// A value as it is to be written, with copies of the tensors' bytes or the tensors themselves.
class Snapshot {
 public:
  Snapshot(py::handle value, bool copies) : copies_(copies), value_(from_python(value, "state")) {}

  const PythonValue& value() const noexcept { return value_; }
  void write(const std::string& path) const { files::save_python_file(files::real_disk(), path, value_); }

 private:
  PythonValue from_python(py::handle value, const std::string& where);
  PythonValue items(Kind kind, py::handle value, const std::string& where);
  PythonValue pairs(Kind kind, py::handle value, const std::string& where);
  PythonValue tensor(py::handle value, const std::string& where);
  std::shared_ptr<PythonStorage> storage_of(const at::Tensor& tensor);

  const bool copies_;
  /// By the storage in memory, so that tensors which share one share it in the file.
  std::map<const c10::StorageImpl*, std::shared_ptr<PythonStorage>> storages_;
  PythonValue value_;
};

PythonValue Snapshot::items(Kind kind, py::handle value, const std::string& where) {
  PythonValue::Items list;
  size_t index = 0;
  for (const py::handle item : value) list.push_back(from_python(item, text(where, '[', index++, ']')));
  return PythonValue::items_of(kind, std::move(list));
}

PythonValue Snapshot::pairs(Kind kind, py::handle value, const std::string& where) {
  PythonValue::Pairs list;
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
    const std::string name = py::str(key);
    list.emplace_back(from_python(key, where + "'s key " + name), from_python(item, where + "." + name));
  }
  return PythonValue::pairs_of(kind, std::move(list));
}

std::shared_ptr<PythonStorage> Snapshot::storage_of(const at::Tensor& tensor) {
  auto& known = storages_[tensor.storage().unsafeGetStorageImpl()];
  if (known) return known;
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  const auto whole = at::empty({0}, at::kByte).set_(tensor.storage(), 0, {bytes}, {1});
  const auto owner = std::make_shared<at::Tensor>(copies_ ? whole.clone() : whole);
  known = std::make_shared<PythonStorage>(PythonStorage{.key = std::to_string(storages_.size() - 1),
                                                        .dtype = checkpoint::file_dtype(tensor.scalar_type()),
                                                        .bytes = bytes,
                                                        .data = static_cast<const char*>(owner->const_data_ptr()),
                                                        .owner = owner});
  return known;
}

PythonValue Snapshot::tensor(py::handle value, const std::string& where) {
  const py::object type = py::type::of(value);
  const auto torch = py::module_::import("torch");
  const bool is_parameter = py::isinstance(value, torch.attr("nn").attr("Parameter"));
  if (!type.is(torch.attr("Tensor")) && !is_parameter) {
    throw UsageError(kCheckpoint, where, " is a ", std::string(py::str(type.attr("__name__"))),
                     ". Give whole tensors: value.full_tensor() of a DTensor, or the full state dict of "
                     "torch.distributed.checkpoint.state_dict.");
  }
  const auto given = value.cast<at::Tensor>();
  if (given.is_meta() || given.layout() != at::kStrided) {
    throw UsageError(kCheckpoint, where, " is a tensor of layout ", given.layout(), " on ", given.device(),
                     "; expected a dense one with values.");
  }
  const at::NoGradGuard no_grad;
  at::Tensor plain = given.detach();
  if (!plain.is_cpu()) plain = plain.cpu();
  plain = plain.resolve_conj().resolve_neg();
  PythonTensor result;
  result.storage = storage_of(plain);
  result.dtype = checkpoint::file_dtype(plain.scalar_type());
  result.shape = plain.sizes().vec();
  result.stride = plain.strides().vec();
  result.offset = plain.storage_offset();
  result.requires_grad = given.requires_grad() && given.is_leaf();
  result.parameter = is_parameter;
  return result;
}

PythonValue int_from(py::handle value) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0) return PythonValue::big_int(std::string(py::str(value)));
  return PythonValue(number);
}

PythonValue Snapshot::from_python(py::handle value, const std::string& where) {
  if (value.is_none()) return PythonValue::none();
  if (PyBool_Check(value.ptr())) return PythonValue(value.cast<bool>());
  if (PyLong_CheckExact(value.ptr())) return int_from(value);
  if (PyFloat_CheckExact(value.ptr())) return PythonValue(value.cast<double>());
  if (PyComplex_CheckExact(value.ptr())) {
    const auto number = value.cast<std::complex<double>>();
    return PythonValue::complex(number.real(), number.imag());
  }
  if (PyUnicode_CheckExact(value.ptr())) return PythonValue(value.cast<std::string>());
  if (PyBytes_CheckExact(value.ptr())) return PythonValue::bytes(value.cast<std::string>());
  if (PyList_CheckExact(value.ptr())) return items(Kind::kList, value, where);
  if (PyTuple_CheckExact(value.ptr())) return items(Kind::kTuple, value, where);
  if (PyDict_CheckExact(value.ptr())) return pairs(Kind::kDict, value, where);
  const auto torch = py::module_::import("torch");
  if (py::isinstance(value, torch.attr("Tensor"))) return tensor(value, where);
  if (py::isinstance(value, torch.attr("Size"))) return items(Kind::kSize, value, where);
  if (py::isinstance(value, torch.attr("dtype"))) {
    const std::string name = py::str(value);
    if (const auto dtype = files::dtype_of_torch_name(name.substr(name.find('.') + 1)))
      return PythonValue::dtype(*dtype);
  }
  if (py::isinstance(value, torch.attr("device"))) return PythonValue::device(std::string(py::str(value)));
  if (py::type::of(value).is(py::module_::import("collections").attr("OrderedDict"))) {
    return pairs(Kind::kOrderedDict, value, where);
  }
  throw UsageError(kCheckpoint, where, " is a ", std::string(py::str(py::type::of(value).attr("__qualname__"))),
                   "; expected numbers, texts, tensors, and lists, tuples and dicts of them. Give its state_dict(), or "
                   "leave it out.");
}

// ---- What Python calls.

py::object load_value(const std::string& path) {
  std::optional<files::PythonFile> file;
  {
    const WithoutGil no_gil;
    file = files::PythonFile::open(path);
  }
  return to_python(file->value());
}

py::dict load_tensors(const std::string& path, const std::string& form) {
  py::dict result;
  const auto source = files::open_source(path, {.form = form});
  for (const std::string& name : source->names()) {
    const auto& info = source->info(name);
    const at::Tensor tensor = at::empty(info.shape, checkpoint::torch_dtype(info.dtype));
    {
      const WithoutGil no_gil;
      source->read_all(name, tensor.data_ptr());
    }
    result[py::str(name)] = tensor;
  }
  return result;
}

}  // namespace

files::PythonValue from_python(py::handle object, bool copies) {
  return Snapshot(object, copies).value();
}

void bind_files(py::module_& module) {
  py::class_<Snapshot>(module, "Snapshot", py::module_local())
      .def(py::init<py::handle, bool>(), py::arg("value"), py::arg("copies"))
      .def("write", &Snapshot::write, py::call_guard<WithoutGil>());
  module.def("is_python_file", &files::PythonFile::is_python_file);
  module.def("form_of", &files::form_of, py::call_guard<WithoutGil>());
  module.def("load_value", &load_value);
  module.def("load_tensors", &load_tensors, py::arg("path"), py::arg("form"));
}

}  // namespace hasten::python
