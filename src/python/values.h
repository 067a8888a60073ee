// Conversions between Python's values and this library's that more than one binding needs.
#pragma once

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <torch/csrc/utils/pybind.h>

namespace hasten::python {

namespace py = pybind11;
using WithoutGil = py::gil_scoped_release;

}  // namespace hasten::python
