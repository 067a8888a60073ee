// The end of reading a pickle: containers that hold themselves are cut, and equal keys of a dict become one.
#pragma once

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// Calls `visit` with each child of a container, for walks without recursion.
template <class Visit>
void for_each_child(PythonValue& value, const Visit& visit) {
  if (value.is_sequence()) {
    for (PythonValue& child : value.as_items()) visit(child);
  } else if (value.is_mapping()) {
    for (auto& [key, child] : value.as_pairs()) {
      visit(key);
      visit(child);
    }
    if (const PythonValue* attributes = value.attributes()) visit(const_cast<PythonValue&>(*attributes));
  } else if (value.is_object()) {
    PythonValue::Object& object = value.as_object();
    visit(object.args);
    visit(object.state);
    for (PythonValue& child : object.items) visit(child);
    for (auto& [key, child] : object.pairs) {
      visit(key);
      visit(child);
    }
  }
}

/// Returns true for values that hold others.
inline bool is_container(const PythonValue& value) {
  return value.is_sequence() || value.is_mapping() || value.is_object();
}

class PickleFinisher {
 public:
  /// Replaces references to a container from inside itself by kCycle. Of pairs with equal keys the first place and the
  /// last value stay. Values that an earlier call has finished are left alone. Walks without recursion, so any depth is
  /// fine.
  void finish(PythonValue& root);

 private:
  struct Frame {
    const void* identity;
    std::vector<PythonValue*> children;
    size_t next = 0;
  };
  void visit(PythonValue& value);

  std::unordered_set<const void*> open_, done_;
  std::vector<Frame> frames_;
};

}  // namespace hasten::files
