// See module_tree.h.
#include "hasten/plan/module_tree.h"

#include <algorithm>
#include <map>
#include <set>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using core::Value;

std::string below(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

const Value& member(const Value& value, std::string_view key, const std::string& at) {
  if (const Value* found = value.find(key)) return *found;
  throw DataError(Origin{"plan"}, at, "the module tree at '", at, "' has no key '", key, "'.");
}

class TreeReader {
 public:
  ModuleNodePtr read(const Value& value, const std::string& name) {
    if (const Value* same = value.find("same_as")) return same_module(same->as_string(), name);
    auto node = std::make_shared<ModuleNode>();
    node->class_name = short_class_name(member(value, "class", name).as_string());
    read_tensors(value, "params", name, node->parameters);
    read_tensors(value, "buffers", name, node->buffers);
    if (const Value* children = value.find("children")) {
      for (const Value& child : children->as_list()) {
        const auto& pair = child.as_list();
        if (pair.size() != 2) throw DataError(Origin{"plan"}, name, "a child of '", name, "' is no [name, tree].");
        const std::string& child_name = pair[0].as_string();
        node->children.emplace_back(child_name, read(pair[1], below(name, child_name)));
      }
    }
    modules_[name] = node;
    return node;
  }

 private:
  ModuleNodePtr same_module(const std::string& other, const std::string& name) const {
    const auto found = modules_.find(other);
    if (found != modules_.end()) return found->second;
    throw DataError(Origin{"plan"}, name, "'", name, "' is the same as '", other, "', which does not come before it.");
  }

  void read_tensors(const Value& value, std::string_view key, const std::string& at, std::vector<TensorNode>& out) {
    const Value* list = value.find(key);
    if (list == nullptr) return;
    for (const Value& item : list->as_list()) {
      TensorNode tensor;
      tensor.name = member(item, "name", at).as_string();
      for (const Value& size : member(item, "shape", at).as_list()) tensor.shape.push_back(size.as_int());
      tensor.dtype = member(item, "dtype", at).as_string();
      if (const Value* persistent = item.find("persistent")) tensor.persistent = persistent->as_bool();
      const Value* tie = item.find("tie");
      tensor.identity = tie == nullptr ? next_++ : tied(tie->as_int());
      out.push_back(std::move(tensor));
    }
  }

  int64_t tied(int64_t number) {
    const auto [place, is_new] = ties_.try_emplace(number, next_);
    if (is_new) ++next_;
    return place->second;
  }

  std::map<std::string, ModuleNodePtr> modules_;
  std::map<int64_t, int64_t> ties_;
  int64_t next_ = 0;
};

// Visits module objects once (or under every name) in the order of their registration, parents first.
template <class Visit>
void visit_modules(const ModuleNodePtr& node, const std::string& name, std::set<const ModuleNode*>* seen,
                   const Visit& visit) {
  if (seen != nullptr && !seen->insert(node.get()).second) return;
  visit(name, node);
  for (const auto& [child_name, child] : node->children) visit_modules(child, below(name, child_name), seen, visit);
}

std::vector<NamedTensor> collect(const ModuleTree& tree, std::vector<TensorNode> ModuleNode::*kind, bool distinct) {
  std::vector<NamedTensor> found;
  std::set<const ModuleNode*> modules;
  std::set<int64_t> tensors;
  visit_modules(tree.root, "", distinct ? &modules : nullptr, [&](const std::string& name, const ModuleNodePtr& node) {
    for (const TensorNode& tensor : (*node).*kind) {
      if (distinct && !tensors.insert(tensor.identity).second) continue;
      found.push_back({below(name, tensor.name), &tensor});
    }
  });
  return found;
}

ModuleNode& child_of(ModuleNode& node, const std::string& name) {
  for (const auto& [child_name, child] : node.children) {
    // The tree is still being built here, and all its nodes are this file's own.
    if (child_name == name) return const_cast<ModuleNode&>(*child);
  }
  auto made = std::make_shared<ModuleNode>();
  if (std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= '0' && c <= '9'; }))
    made->class_name = "block";
  node.children.emplace_back(name, made);
  return *made;
}

}  // namespace

double TensorNode::num_elements() const noexcept {
  double product = 1;
  for (const int64_t size : shape) product *= static_cast<double>(size);
  return product;
}

ModuleTree ModuleTree::from_json(const Value& value) {
  return {TreeReader().read(value, "")};
}

ModuleTree ModuleTree::from_names(const std::vector<TensorNode>& tensors) {
  auto root = std::make_shared<ModuleNode>();
  int64_t next = 0;
  for (const TensorNode& tensor : tensors) {
    ModuleNode* node = root.get();
    std::string rest = tensor.name;
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      node = &child_of(*node, rest.substr(0, dot));
      rest.erase(0, dot + 1);
    }
    node->parameters.push_back(tensor);
    node->parameters.back().name = rest;
    node->parameters.back().identity = next++;
  }
  return {root};
}

std::vector<NamedTensor> ModuleTree::parameters() const {
  return collect(*this, &ModuleNode::parameters, true);
}

std::vector<NamedTensor> ModuleTree::buffers() const {
  return collect(*this, &ModuleNode::buffers, true);
}

std::vector<NamedTensor> ModuleTree::all_parameters() const {
  return collect(*this, &ModuleNode::parameters, false);
}

std::vector<std::pair<std::string, ModuleNodePtr>> ModuleTree::modules() const {
  std::vector<std::pair<std::string, ModuleNodePtr>> found;
  std::set<const ModuleNode*> seen;
  visit_modules(root, "", &seen,
                [&](const std::string& name, const ModuleNodePtr& node) { found.emplace_back(name, node); });
  return found;
}

ModuleNodePtr ModuleTree::find(std::string_view name) const {
  ModuleNodePtr node = root;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const auto child = std::find_if(node->children.begin(), node->children.end(),
                                    [&](const auto& item) { return item.first == part; });
    if (child == node->children.end()) return nullptr;
    node = child->second;
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  return node;
}

std::string short_class_name(std::string_view name) {
  const size_t scope = name.substr(0, name.find('<')).rfind("::");
  if (scope != std::string_view::npos) name.remove_prefix(scope + 2);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.ends_with(kImpl)) name.remove_suffix(kImpl.size());
  return std::string(name);
}

std::vector<std::vector<std::string>> find_tied_parameters(const ModuleTree& tree) {
  std::map<int64_t, std::set<std::string>> names;
  for (const NamedTensor& item : tree.all_parameters()) names[item.tensor->identity].insert(item.name);
  std::vector<std::vector<std::string>> groups;
  for (const auto& [identity, group] : names) {
    if (group.size() > 1) groups.emplace_back(group.begin(), group.end());
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

}  // namespace hasten::plan
