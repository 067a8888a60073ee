// Conversions between Python's values and this library's that more than one binding needs.
#pragma once

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <string>

#include <torch/csrc/utils/pybind.h>

#include "hasten/core/value.h"
#include "hasten/files/python/python_value.h"

namespace hasten::python {

namespace py = pybind11;
using WithoutGil = py::gil_scoped_release;

/// Returns numbers, texts, and lists, tuples and dicts of them as a plain value. Anything else becomes its text.
/// `where` is its name in errors. With the GIL.
core::Value plain_value(py::handle value, const std::string& where);

/// Return a value of Python's files as an object, and an object as such a value. Objects of classes come as
/// hasten.checkpoint.Inert. `copies`: the value has copies of the tensors' bytes, else the tensors themselves. With the
/// GIL. Throws: UsageError for an object that has no such form, with its place.
py::object to_python(const files::PythonValue& value);
files::PythonValue from_python(py::handle object, bool copies);

}  // namespace hasten::python
