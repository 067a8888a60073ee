// Writing pickles of protocol 2 that torch.load(weights_only=True) reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/files/python/python_value.h"

namespace hasten::files {

struct WrittenPickle {
  std::string bytes = {};
  /// The storages of all tensors, in order of first use: number k is the record "data/k".
  std::vector<std::shared_ptr<PythonStorage>> storages = {};
};

/// Writes `value`. Tensors name their storages by persistent ids, as torch.save does.
/// Throws: UsageError for an object of an unknown class, a cycle, a numpy array, or more than 500 levels; UsageError
/// for a tensor that is sparse or otherwise without strides.
WrittenPickle write_pickle(const PythonValue& value);

}  // namespace hasten::files
