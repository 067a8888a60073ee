// numpy arrays and scalars in pickles; see python_globals.h.
#include <algorithm>
#include <charconv>

#include "files/base/origin.h"
#include "files/python/python_globals.h"
#include "hasten/files/base/box.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;
using Items = PythonValue::Items;

[[noreturn]] void fail_array(std::string what) {
  throw BadPickle{std::move(what)};
}

struct NumpyDtype {
  std::string code = {};  ///< "f8"
  size_t item = 0;        ///< bytes of an element
  size_t part = 0;        ///< bytes that byte order swaps
  bool big = false;
};

bool is_dtype_object(const PythonValue& value) {
  return value.is_object() && value.as_object().name.ends_with("dtype") && is_numpy(value.as_object().module);
}

/// Reads a numpy.dtype object: dtype("f8", False, True) with the state (3, "<", …).
NumpyDtype dtype_of(const PythonValue& value) {
  if (!is_dtype_object(value) || !value.as_object().args.is_sequence() || value.as_object().args.size() == 0 ||
      !value.as_object().args[size_t{0}].is_string()) {
    fail_array(text("a numpy dtype is a ", value.type_name()));
  }
  NumpyDtype dtype{.code = value.as_object().args[size_t{0}].as_string()};
  const PythonValue& state = value.as_object().state;
  if (state.is_sequence() && state.size() > 1 && state[1].is_string()) dtype.big = state[1].as_string() == ">";
  if (!dtype.code.empty() && std::string_view("<>|=").find(dtype.code.front()) != std::string_view::npos) {
    dtype.big = dtype.big || dtype.code.front() == '>';
    dtype.code.erase(0, 1);
  }
  size_t size = 0;
  const char* end = dtype.code.data() + dtype.code.size();
  const auto [last, error] = std::from_chars(dtype.code.data() + 1, end, size);
  if (dtype.code.size() < 2 || error != std::errc() || last != end || size > (1 << 30))
    fail_array(text("the numpy dtype '", dtype.code, "' is unknown"));
  const char kind = dtype.code.front();
  dtype.item = kind == 'U' ? 4 * size : size;
  dtype.part = kind == 'c' ? size / 2 : kind == 'U' ? 4 : kind == 'S' || kind == 'V' ? 1 : size;
  return dtype;
}

std::vector<int64_t> shape_of(const PythonValue& value) {
  if (!value.is_sequence()) fail_array(text("a numpy array's shape is a ", value.type_name()));
  std::vector<int64_t> shape;
  for (const PythonValue& size : value.as_items()) {
    if (!size.is_int() || size.is_big_int() || size.as_int() < 0) fail_array("a numpy array's shape holds no size");
    shape.push_back(size.as_int());
  }
  return shape;
}

/// Fills `array` from raw bytes in C or Fortran order.
void fill(PythonArray& array, const NumpyDtype& dtype, std::vector<int64_t> shape, bool fortran,
          const std::string& bytes) {
  int64_t size = static_cast<int64_t>(dtype.item);
  for (const int64_t one : shape) {
    if (__builtin_mul_overflow(size, one, &size)) fail_array("a numpy array is larger than 63 bits count");
  }
  if (size != static_cast<int64_t>(bytes.size())) {
    fail_array(
        text("a numpy array of ", dtype.code, " [", join(shape), "] has ", bytes.size(), " bytes, expected ", size));
  }
  array.dtype = dtype.code;
  array.bytes = bytes;
  if (fortran && shape.size() > 1 && size > 0) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t d = 1; d < shape.size(); ++d) strides[d] = strides[d - 1] * shape[d - 1];
    copy_strided(bytes.data(), strides, whole_box(shape), array.bytes.data(), dtype.item);
  }
  if (dtype.big && dtype.part > 1) {
    for (size_t at = 0; at + dtype.part <= array.bytes.size(); at += dtype.part) {
      std::reverse(array.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                   array.bytes.begin() + static_cast<std::ptrdiff_t>(at + dtype.part));
    }
  }
  array.shape = std::move(shape);
}

const std::string* bytes_of_value(const PythonValue& value) {
  return value.kind() == Kind::kBytes || value.kind() == Kind::kByteArray ? &value.as_bytes() : nullptr;
}

}  // namespace

bool is_numpy(const std::string& module) {
  return module == "numpy" || module.starts_with("numpy.");
}

bool is_numpy_array_under_construction(const PythonValue& value) {
  return value.kind() == Kind::kArray && value.as_array().dtype.empty();
}

std::optional<PythonValue> call_numpy(const std::string& name, const Items& args) {
  if (name == "_reconstruct") return PythonValue::array({});
  if (name == "scalar" && args.size() == 2) {
    const std::string* bytes = bytes_of_value(args[1]);
    if (bytes == nullptr) return std::nullopt;
    PythonArray array;
    fill(array, dtype_of(args[0]), {}, false, *bytes);
    return PythonValue::array(std::move(array));
  }
  if (name == "_frombuffer" && args.size() == 4) {
    const std::string* bytes = bytes_of_value(args[0]);
    if (bytes == nullptr || !args[3].is_string()) return std::nullopt;
    PythonArray array;
    fill(array, dtype_of(args[1]), shape_of(args[2]), args[3].as_string() == "F", *bytes);
    return PythonValue::array(std::move(array));
  }
  return std::nullopt;
}

void build_numpy_array(PythonValue& value, const PythonValue& state) {
  if (!state.is_sequence() || state.size() != 5 || !state[3].is_bool())
    fail_array("a numpy array has a state of another form");
  const std::string* bytes = bytes_of_value(state[4]);
  auto& array = const_cast<PythonArray&>(value.as_array());
  if (bytes == nullptr) {  // an array of objects, or Python 2's text
    array.dtype = "O8";
    array.shape = shape_of(state[1]);
    return;
  }
  fill(array, dtype_of(state[2]), shape_of(state[1]), state[3].as_bool(), *bytes);
}

}  // namespace hasten::files
