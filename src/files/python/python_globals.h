// The classes and functions of pickles that hasten supports; private to the room.
#pragma once

#include <optional>
#include <string>

#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// Thrown by the functions below; the reader adds the path and the position.
struct BadPickle {
  std::string what;
};

/// Throws: BadPickle if Python could not hash the value, so that it is no key of a dict and no member of a set.
void require_hashable(const PythonValue& value);
/// The same for all keys, and for all members.
void require_hashable_keys(const PythonValue::Pairs& pairs);
void require_hashable_members(const PythonValue::Items& items);

/// Returns the value of a global that is one by itself (a torch.dtype). Otherwise returns the class or function by its
/// present name (Python 2's modules renamed).
PythonValue global_of(std::string module, std::string name);

/// Returns the result of calling the class or function `callable` with `args`; nothing if the callable is unknown.
/// `args` is a tuple. Throws: BadPickle if the arguments do not fit.
std::optional<PythonValue> call_known(const PythonValue& callable, const PythonValue& args);

/// Gives `state` to `value`, as __setstate__ or an update of __dict__ would. Throws: BadPickle.
void build(PythonValue& value, PythonValue state);

/// Checks a tensor against its storage. Throws: BadPickle with the numbers.
void check_tensor(const PythonTensor& tensor);

/// Returns the dtype of a storage class by its name without module ("FloatStorage"; kUInt8 for UntypedStorage).
std::optional<Dtype> dtype_of_storage_type(const std::string& name);

/// Class of a tensor value that represents a storage itself.
inline constexpr const char* kStorageClass = "torch.storage";
/// Wraps a storage as a value: a tensor of one dimension over all of it.
PythonValue storage_value(std::shared_ptr<PythonStorage> storage);

// numpy's part (python_numpy.cpp).
std::optional<PythonValue> call_numpy(const std::string& name, const PythonValue::Items& args);
bool is_numpy(const std::string& module);
bool is_numpy_array_under_construction(const PythonValue& value);
void build_numpy_array(PythonValue& value, const PythonValue& state);

}  // namespace hasten::files
