// Sizes of modules: bytes of every name prefix, the largest layer, the total.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/plan/module_tree.h"

namespace hasten::plan {

/// Bytes by name prefix, "" = the whole model, in the order of first appearance. Sizes may be fractions (bool: 1/8).
class ModuleSizes {
 public:
  double at(const std::string& name) const;  ///< 0 for a name without tensors
  void add(const std::string& name, double bytes);
  const std::vector<std::pair<std::string, double>>& entries() const noexcept { return entries_; }
  double total() const { return at(""); }

 private:
  std::vector<std::pair<std::string, double>> entries_;
  std::map<std::string, size_t> places_;
};

struct SizeOptions {
  /// The dtype that floats will have: each counts the smaller of its own size and this one's. "": its own.
  std::string dtype = {};
  /// By full tensor name; goes before `dtype`.
  std::map<std::string, std::string> special_dtypes = {};
  bool buffers_only = false;
};

/// Returns the bytes below every prefix. Distinct tensors count once, under their first name.
/// Throws: UsageError for an unknown dtype.
ModuleSizes compute_module_sizes(const ModuleTree& tree, const SizeOptions& options = {});
/// Returns the bytes of all buffers.
double compute_module_total_buffer_size(const ModuleTree& tree, SizeOptions options = {});

/// A name of the model: of a module, or (with a null module) of a tensor.
struct TreeEntry {
  std::string name = {};
  ModuleNodePtr module = {};
  const TensorNode* tensor = nullptr;
};

/// Returns a module's direct parameters and children, as entries below `name`.
std::vector<TreeEntry> split_entry(const TreeEntry& entry);
/// Returns the root's parameters, children and buffers.
std::vector<TreeEntry> start_entries(const ModuleTree& tree);
/// Returns true if the entry is a module with children whose class is not in the list.
bool can_split(const TreeEntry& entry, const std::vector<std::string>& no_split_module_classes);

struct LargestLayer {
  double bytes = 0;
  std::vector<std::string> names = {};
};

/// Returns the largest layer among the entries. A layer is a tensor, a module without children, or a module of a class
/// in the list (short names; see short_class_name).
LargestLayer largest_layer(const std::vector<TreeEntry>& entries, const ModuleSizes& sizes,
                           const std::vector<std::string>& no_split_module_classes);

struct MaximumSizes {
  double total = 0;
  LargestLayer largest = {};
};

/// Accelerate's calculate_maximum_sizes: in the tensors' own dtypes.
MaximumSizes calculate_maximum_sizes(const ModuleTree& tree,
                                     const std::vector<std::string>& no_split_module_classes = {});

}  // namespace hasten::plan
