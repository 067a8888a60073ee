// Reading pickles, protocols 0 to 5, as inert values: no class is looked up, no function is called.
//
// GLOBAL, REDUCE, NEWOBJ and BUILD make values: known names (OrderedDict, torch's tensors, numpy arrays) become their
// values, all others a PythonValue::Object. Stack, memo and nesting are explicit, so that no input exhausts the stack.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "hasten/files/python/python_value.h"

namespace hasten::files {

struct PickleOptions {
  /// Gives the value of a persistent id (a storage, in torch's files). Empty: such an id is an error.
  std::function<PythonValue(const PythonValue& id)> persistent_load = {};
  /// Bytes that values may take. 0: four times the pickle, and 64 MB.
  uint64_t max_memory = 0;
};

struct Pickle {
  PythonValue value = {};
  size_t size = 0;                           ///< bytes up to and including STOP
  std::set<std::string> unknown_names = {};  ///< classes and functions that Python would have imported and called
};

/// Reads the pickle at the beginning of `bytes`. `path` and `offset` (of the pickle in the file) appear in messages. A
/// value that contains itself is cut: the inner reference becomes kCycle. Of equal keys in a dict the last value
/// counts.
/// Throws: DataError, with the byte position, for a truncated pickle, an unknown opcode or a stack underflow; DataError
/// for a length beyond the end, too much memory, or a tensor outside its storage.
Pickle read_pickle(std::string_view bytes, const std::string& path, const PickleOptions& options = {},
                   uint64_t offset = 0);

}  // namespace hasten::files
