// See module_sizes.h.
#include "hasten/plan/module_sizes.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>

#include "hasten/plan/memory_size.h"

namespace hasten::plan {
namespace {

double element_size(const NamedTensor& item, const SizeOptions& options) {
  const auto special = options.special_dtypes.find(item.name);
  if (special != options.special_dtypes.end()) return dtype_byte_size(special->second);
  const double own = dtype_byte_size(item.tensor->dtype);
  if (options.dtype.empty() || !is_floating_dtype(item.tensor->dtype)) return own;
  return std::min(own, dtype_byte_size(options.dtype));
}

bool is_listed(const std::string& class_name, const std::vector<std::string>& classes) {
  return std::any_of(classes.begin(), classes.end(),
                     [&](const std::string& listed) { return short_class_name(listed) == class_name; });
}

// A module that occurs twice among one parent's children counts once.
std::vector<std::pair<std::string, ModuleNodePtr>> distinct_children(const ModuleNode& module) {
  std::vector<std::pair<std::string, ModuleNodePtr>> found;
  std::set<const ModuleNode*> seen;
  for (const auto& child : module.children) {
    if (seen.insert(child.second.get()).second) found.push_back(child);
  }
  return found;
}

void append_parameters(const ModuleNode& module, const std::string& prefix, std::vector<TreeEntry>& out) {
  std::set<int64_t> seen;
  for (const TensorNode& tensor : module.parameters) {
    if (seen.insert(tensor.identity).second) out.push_back({prefix + tensor.name, nullptr, &tensor});
  }
}

void append_children(const ModuleNode& module, const std::string& prefix, std::vector<TreeEntry>& out) {
  for (const auto& [name, child] : distinct_children(module)) out.push_back({prefix + name, child, nullptr});
}

}  // namespace

double ModuleSizes::at(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? 0 : entries_[found->second].second;
}

void ModuleSizes::add(const std::string& name, double bytes) {
  const auto [found, is_new] = places_.try_emplace(name, entries_.size());
  if (is_new) entries_.emplace_back(name, 0);
  entries_[found->second].second += bytes;
}

ModuleSizes compute_module_sizes(const ModuleTree& tree, const SizeOptions& options) {
  ModuleSizes sizes;
  const auto add = [&](const NamedTensor& item) {
    const double bytes = item.tensor->num_elements() * element_size(item, options);
    sizes.add("", bytes);
    for (size_t dot = item.name.find('.'); dot != std::string::npos; dot = item.name.find('.', dot + 1)) {
      sizes.add(item.name.substr(0, dot), bytes);
    }
    sizes.add(item.name, bytes);
  };
  if (!options.buffers_only) {
    for (const NamedTensor& item : tree.parameters()) add(item);
  }
  for (const NamedTensor& item : tree.buffers()) add(item);
  return sizes;
}

double compute_module_total_buffer_size(const ModuleTree& tree, SizeOptions options) {
  options.buffers_only = true;
  return compute_module_sizes(tree, options).total();
}

std::vector<TreeEntry> split_entry(const TreeEntry& entry) {
  std::vector<TreeEntry> parts;
  const std::string prefix = entry.name.empty() ? "" : entry.name + ".";
  append_parameters(*entry.module, prefix, parts);
  append_children(*entry.module, prefix, parts);
  return parts;
}

std::vector<TreeEntry> start_entries(const ModuleTree& tree) {
  std::vector<TreeEntry> entries = split_entry({"", tree.root, nullptr});
  for (const TensorNode& buffer : tree.root->buffers) entries.push_back({buffer.name, nullptr, &buffer});
  return entries;
}

bool can_split(const TreeEntry& entry, const std::vector<std::string>& no_split_module_classes) {
  return entry.module != nullptr && !entry.module->children.empty() &&
         !is_listed(entry.module->class_name, no_split_module_classes);
}

LargestLayer largest_layer(const std::vector<TreeEntry>& entries, const ModuleSizes& sizes,
                           const std::vector<std::string>& no_split_module_classes) {
  LargestLayer largest;
  std::deque<TreeEntry> open(entries.begin(), entries.end());
  while (!open.empty()) {
    const TreeEntry entry = open.front();
    open.pop_front();
    if (can_split(entry, no_split_module_classes)) {
      std::vector<TreeEntry> children;
      append_children(*entry.module, entry.name + ".", children);
      open.insert(open.begin(), children.begin(), children.end());
      continue;
    }
    const double bytes = sizes.at(entry.name);
    if (bytes > largest.bytes) largest = {bytes, {}};
    if (bytes == largest.bytes) largest.names.push_back(entry.name);
  }
  return largest;
}

MaximumSizes calculate_maximum_sizes(const ModuleTree& tree, const std::vector<std::string>& no_split_module_classes) {
  const ModuleSizes sizes = compute_module_sizes(tree);
  return {sizes.total(), largest_layer(start_entries(tree), sizes, no_split_module_classes)};
}

}  // namespace hasten::plan
