// See python/values.h; values of files are in files.cpp.
#include "python/values.h"

namespace hasten::python {

core::Value plain_value(py::handle value, const std::string& where) {
  if (value.is_none()) return nullptr;
  if (PyBool_Check(value.ptr())) return value.cast<bool>();
  if (PyLong_Check(value.ptr())) return value.cast<int64_t>();
  if (PyFloat_Check(value.ptr())) return value.cast<double>();
  if (PyUnicode_Check(value.ptr())) return value.cast<std::string>();
  if (py::isinstance<py::dict>(value)) {
    auto map = core::Value::map();
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      const std::string name = py::str(key);
      map[name] = plain_value(item, where + "." + name);
    }
    return map;
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    auto list = core::Value::list();
    for (const py::handle item : value) list.push_back(plain_value(item, where));
    return list;
  }
  return std::string(py::str(value));
}

}  // namespace hasten::python
