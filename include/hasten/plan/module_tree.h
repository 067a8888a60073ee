// ModuleTree: names, classes, shapes and dtypes of a model's modules and tensors, without their values.
//
// Sizes, limits and device maps are pure functions of such a tree. It is made from a module (offload/map/tree_of.h),
// from the headers of a checkpoint (files), or from JSON. So the command needs no libtorch for any of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::plan {

struct TensorNode {
  std::string name = {};
  std::vector<int64_t> shape = {};
  std::string dtype = "float32";  ///< PyTorch's name without "torch."
  int64_t identity = -1;          ///< equal for names of one tensor object; distinct otherwise
  bool persistent = true;         ///< a buffer that is part of the state dict

  double num_elements() const noexcept;
};

struct ModuleNode;
using ModuleNodePtr = std::shared_ptr<const ModuleNode>;

struct ModuleNode {
  std::string class_name = {};  ///< "LlamaBlock": without namespace and without libtorch's "Impl"
  std::vector<TensorNode> parameters = {}, buffers = {};
  /// A node may have several names: then it is one module object.
  std::vector<std::pair<std::string, ModuleNodePtr>> children = {};
};

/// A tensor with its full dotted name.
struct NamedTensor {
  std::string name;
  const TensorNode* tensor;
};

struct ModuleTree {
  ModuleNodePtr root = std::make_shared<ModuleNode>();

  /// Reads {"class", "params": [{"name", "shape", "dtype"[, "tie"][, "persistent"]}], "buffers", "children": [[name,
  /// tree]]}. A child {"same_as": "a.b"} is the module object a.b. Equal "tie" numbers mark one tensor object.
  /// Throws: DataError naming the key that is missing or of another kind.
  static ModuleTree from_json(const core::Value& value);
  /// Builds the tree that dotted tensor names describe. Every part before the last is a module of unknown class. A
  /// module whose own name is a number, as the layers of a list, has the class "block".
  static ModuleTree from_names(const std::vector<TensorNode>& tensors);

  /// Returns distinct parameters (then distinct buffers) under their first names, in the order of the modules.
  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> buffers() const;
  /// Returns every parameter name, also those of one tensor object and of one module object.
  std::vector<NamedTensor> all_parameters() const;
  /// Returns the names of all modules, "" first; a module object under its first name only.
  std::vector<std::pair<std::string, ModuleNodePtr>> modules() const;
  /// Returns the module of that dotted name; null if there is none.
  ModuleNodePtr find(std::string_view name) const;
};

/// Returns a class's short name: "net::LlamaBlockImpl", "LlamaBlockImpl" and "LlamaBlock" give "LlamaBlock".
std::string short_class_name(std::string_view name);

/// Returns groups of parameter names that share one tensor, each sorted, in sorted order.
std::vector<std::vector<std::string>> find_tied_parameters(const ModuleTree& tree);

}  // namespace hasten::plan
