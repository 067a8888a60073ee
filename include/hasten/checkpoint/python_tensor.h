// Tensors of libtorch and of Python's files, one made from the other.
//
// files/ is free of libtorch. This unit converts its dtypes, tensors and values to at::Tensor and back. Tensors that
// share a storage share one in the file too, and only the part of a storage that they use is written.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/files/base/dtype.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/files/python/python_value.h"
#include "hasten/training/stateful.h"

namespace hasten::checkpoint {

/// Throws: UsageError for a dtype that files do not have (quantised ones).
files::Dtype file_dtype(c10::ScalarType dtype);
/// Throws: DataError for a dtype that libtorch lacks.
c10::ScalarType torch_dtype(files::Dtype dtype);

files::TensorInfo info_of(const std::string& name, const at::Tensor& tensor);

/// Tensors as a Python file writes them. They keep the tensors; device tensors are copied to the CPU.
/// Blocks: for device copies. Throws: UsageError for sparse or quantised tensors.
std::vector<files::PythonTensor> python_tensors(const std::vector<at::Tensor>& tensors);

/// Returns a tensor of its own memory with the file's values and strides.
/// Blocks: on the file. Throws: DataError for a value that is no tensor, or one whose values cannot be
/// read.
at::Tensor tensor_of(const files::PythonValue& value);
at::Tensor tensor_of(const files::PythonTensor& tensor);

/// OrderedDict with `_metadata`, as Module.state_dict() gives it.
files::PythonValue to_python(const StateDict& state);
/// Returns a dict of values, tensors and dicts; lists stay lists.
files::PythonValue to_python(const training::State& state);
files::PythonValue to_python(const core::Value& value);

/// Returns the tree without Python's types: tuples become lists, tensors stay, keys become text. Objects of classes,
/// sets, bytes and big integers have no such form. Throws: DataError, naming the place.
training::State state_of_python(const files::PythonValue& value, const std::string& name = "value");

/// Reads a tensor of a source into a tensor of its own. Blocks: on the file. Throws: DataError.
at::Tensor read_tensor(const files::TensorSource& source, const std::string& name);
/// Returns all tensors of a source, in its order.
StateDict read_state_dict(const files::TensorSource& source);

}  // namespace hasten::checkpoint
