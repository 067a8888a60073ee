// Dtypes, tensors and trees, from libtorch to Python's files and back; see python_tensor.h.
#include "hasten/checkpoint/python_tensor.h"

#include <ATen/Functions.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/files/base/box.h"

namespace hasten::checkpoint {
namespace {

constexpr std::pair<files::Dtype, c10::ScalarType> kDtypes[] = {
    {files::Dtype::kBool, at::kBool},
    {files::Dtype::kUInt8, at::kByte},
    {files::Dtype::kInt8, at::kChar},
    {files::Dtype::kUInt16, at::kUInt16},
    {files::Dtype::kInt16, at::kShort},
    {files::Dtype::kUInt32, at::kUInt32},
    {files::Dtype::kInt32, at::kInt},
    {files::Dtype::kUInt64, at::kUInt64},
    {files::Dtype::kInt64, at::kLong},
    {files::Dtype::kFloat16, at::kHalf},
    {files::Dtype::kBFloat16, at::kBFloat16},
    {files::Dtype::kFloat32, at::kFloat},
    {files::Dtype::kFloat64, at::kDouble},
    {files::Dtype::kComplex32, at::kComplexHalf},
    {files::Dtype::kComplex64, at::kComplexFloat},
    {files::Dtype::kComplex128, at::kComplexDouble},
    {files::Dtype::kFloat8E4M3Fn, at::kFloat8_e4m3fn},
    {files::Dtype::kFloat8E5M2, at::kFloat8_e5m2},
    {files::Dtype::kFloat8E4M3Fnuz, at::kFloat8_e4m3fnuz},
    {files::Dtype::kFloat8E5M2Fnuz, at::kFloat8_e5m2fnuz},
    {files::Dtype::kFloat8E8M0Fnu, c10::ScalarType::Float8_e8m0fnu},
    {files::Dtype::kFloat4E2M1FnX2, c10::ScalarType::Float4_e2m1fn_x2},
};

// The bytes of storages that the tensors use, from the first element to the last.
struct Used {
  int64_t begin = INT64_MAX, end = 0;
};

Used used_by(const at::Tensor& tensor) {
  const auto item = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * item;
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + (last + 1) * item};
}

void swap_bytes(char* data, size_t bytes, size_t unit) {
  for (size_t at = 0; unit > 1 && at + unit <= bytes; at += unit) std::reverse(data + at, data + at + unit);
}

[[noreturn]] void throw_no_tensor(const std::string& found) {
  throw DataError(Origin{"checkpoint"}, "", "a value is ", found, "; expected a tensor whose values are in the file.");
}

int64_t elements_between(const files::PythonTensor& tensor) {
  int64_t last = 0;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return 0;
    last += (tensor.shape[d] - 1) * tensor.stride[d];
  }
  return last + 1;
}

}  // namespace

files::Dtype file_dtype(c10::ScalarType dtype) {
  for (const auto& [ours, theirs] : kDtypes) {
    if (theirs == dtype) return ours;
  }
  throw UsageError(Origin{"checkpoint"}, "a tensor of dtype ", dtype, " cannot be kept in a file. Convert it first.");
}

c10::ScalarType torch_dtype(files::Dtype dtype) {
  for (const auto& [ours, theirs] : kDtypes) {
    if (ours == dtype) return theirs;
  }
  throw DataError(Origin{"checkpoint"}, "", "libtorch has no dtype ", files::torch_name(dtype), '.');
}

files::TensorInfo info_of(const std::string& name, const at::Tensor& tensor) {
  return {name, file_dtype(tensor.scalar_type()), tensor.sizes().vec()};
}

std::vector<files::PythonTensor> python_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> held;
  std::unordered_map<const c10::StorageImpl*, Used> used;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_sparse() || tensor.is_quantized() || tensor.is_mkldnn()) {
      throw UsageError(Origin{"checkpoint"}, "a tensor of layout ", tensor.layout(), " and dtype ",
                       tensor.scalar_type(), " cannot be written to Python's form. Make it dense first.");
    }
    held.push_back(tensor.detach().to(at::kCPU).resolve_conj().resolve_neg());
    Used& range = used[held.back().storage().unsafeGetStorageImpl()];
    const Used own = used_by(held.back());
    range = {std::min(range.begin, own.begin), std::max(range.end, own.end)};
  }
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<files::PythonStorage>> storages;
  std::vector<files::PythonTensor> out;
  for (const at::Tensor& tensor : held) {
    const auto* impl = tensor.storage().unsafeGetStorageImpl();
    const Used range = used.at(impl);
    auto& storage = storages[impl];
    if (!storage) {
      storage = std::make_shared<files::PythonStorage>();
      storage->dtype = file_dtype(tensor.scalar_type());
      storage->bytes = range.end - range.begin;
      storage->data = static_cast<const char*>(tensor.storage().data()) + range.begin;
      storage->owner = std::make_shared<at::Tensor>(tensor);
    }
    files::PythonTensor one;
    one.storage = storage;
    one.dtype = file_dtype(tensor.scalar_type());
    one.shape = tensor.sizes().vec();
    one.stride = tensor.strides().vec();
    one.offset = (tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) - range.begin) /
                 static_cast<int64_t>(tensor.element_size());
    out.push_back(std::move(one));
  }
  return out;
}

at::Tensor tensor_of(const files::PythonValue& value) {
  if (!value.is_tensor()) throw_no_tensor(value.type_name());
  return tensor_of(value.as_tensor());
}

at::Tensor tensor_of(const files::PythonTensor& tensor) {
  if (tensor.is_sparse()) {
    return at::sparse_coo_tensor(tensor_of(*tensor.indices), tensor_of(*tensor.values), tensor.shape);
  }
  if (!tensor.unreadable.empty()) throw_no_tensor("a tensor that cannot be read, since " + tensor.unreadable);
  if (tensor.storage == nullptr || tensor.is_meta()) throw_no_tensor("a tensor without values (device meta)");
  const auto options = at::TensorOptions().dtype(torch_dtype(tensor.dtype));
  const size_t item = files::element_bytes(tensor.dtype);
  const int64_t count = elements_between(tensor);
  // The elements between the first and the last one, of which the tensor is a view.
  at::Tensor flat = at::empty({count}, options);
  const auto bytes = static_cast<size_t>(count) * item;
  const size_t begin = static_cast<size_t>(tensor.offset) * item;
  if (bytes > 0) {
    if (begin + bytes > static_cast<size_t>(tensor.storage->bytes)) throw_no_tensor("a tensor beyond its storage");
    if (tensor.storage->data != nullptr) {
      std::memcpy(flat.mutable_data_ptr(), tensor.storage->data + begin, bytes);
    } else if (tensor.storage->read) {
      tensor.storage->read(begin, bytes, flat.mutable_data_ptr());
    } else {
      throw_no_tensor("a tensor without values");
    }
    if (tensor.storage->swapped)
      swap_bytes(static_cast<char*>(flat.mutable_data_ptr()), bytes, files::swap_bytes(tensor.dtype));
  }
  at::Tensor out = flat.as_strided(tensor.shape, tensor.stride);
  if (tensor.conj) out = out.conj().resolve_conj();
  if (tensor.neg) out = out.neg();
  return out;
}

files::PythonValue to_python(const StateDict& state) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : state) tensors.push_back(item.second);
  auto written = python_tensors(tensors);
  files::PythonValue::Pairs pairs, versions;
  size_t i = 0;
  for (const auto& item : state) pairs.emplace_back(item.first, files::PythonValue(std::move(written[i++])));
  for (const auto& [name, version] : state.versions) {
    versions.emplace_back(name, files::PythonValue::dict({{"version", version}}));
  }
  auto out = files::PythonValue::ordered_dict(std::move(pairs));
  if (!state.versions.empty()) {
    out.set_attributes(
        files::PythonValue::dict({{"_metadata", files::PythonValue::ordered_dict(std::move(versions))}}));
  }
  return out;
}

files::PythonValue to_python(const core::Value& value) {
  using Kind = core::Value::Kind;
  switch (value.kind()) {
    case Kind::kNull:
      return {};
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int();
    case Kind::kDouble:
      return value.as_double();
    case Kind::kString:
      return value.as_string();
    case Kind::kList: {
      files::PythonValue::Items items;
      for (const auto& each : value.as_list()) items.push_back(to_python(each));
      return files::PythonValue::list(std::move(items));
    }
    case Kind::kMap:
      break;
  }
  files::PythonValue::Pairs pairs;
  for (const auto& [name, child] : value.as_map()) pairs.emplace_back(name, to_python(child));
  return files::PythonValue::dict(std::move(pairs));
}

files::PythonValue to_python(const training::State& state) {
  if (state.is_tensor()) return std::move(python_tensors({state.tensor()})[0]);
  if (!state.is_map()) return to_python(state.value());
  files::PythonValue::Pairs pairs;
  for (const auto& [name, child] : state.map()) pairs.emplace_back(name, to_python(child));
  return files::PythonValue::dict(std::move(pairs));
}

training::State state_of_python(const files::PythonValue& value, const std::string& name) {
  using Kind = files::PythonValue::Kind;
  if (value.is_none()) return {};
  if (value.is_bool()) return value.as_bool();
  if (value.is_int() && !value.is_big_int()) return value.as_int();
  if (value.kind() == Kind::kFloat) return value.as_double();
  if (value.is_string()) return value.as_string();
  if (value.is_tensor()) return tensor_of(value);
  if (value.is_mapping()) {
    training::State::Map map;
    for (const auto& [key, child] : value.as_pairs()) {
      const std::string text_key = key.is_string() ? key.as_string() : key.is_int() ? key.int_text() : key.type_name();
      map.emplace_back(text_key, state_of_python(child, name + "." + text_key));
    }
    return map;
  }
  if (value.kind() == Kind::kList || value.kind() == Kind::kTuple || value.kind() == Kind::kSize) {
    core::Value::List list;
    training::State::Map map;  // a list that holds tensors: by number
    bool plain = true;
    for (size_t i = 0; i < value.size(); ++i) {
      auto child = state_of_python(value[i], text(name, '[', i, ']'));
      const bool has_tensors = !training::split_tensors(child).tensors.empty();
      if (!has_tensors) list.push_back(child.value());
      plain = plain && !has_tensors;
      map.emplace_back(std::to_string(i), std::move(child));
    }
    if (plain) return core::Value(std::move(list));
    return map;
  }
  throw DataError(Origin{"checkpoint"}, "", name, " is a ", value.type_name(),
                  ", which has no plain form; expected numbers, text, lists, dicts and tensors.");
}

at::Tensor read_tensor(const files::TensorSource& source, const std::string& name) {
  const auto& info = source.info(name);
  at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(torch_dtype(info.dtype)));
  source.read_all(name, tensor.mutable_data_ptr());
  return tensor;
}

StateDict read_state_dict(const files::TensorSource& source) {
  StateDict state;
  for (const auto& name : source.names()) state.set(name, read_tensor(source, name));
  return state;
}

}  // namespace hasten::checkpoint
