// See wrap_units.h.
#include "parallel/shard/wrap_units.h"

#include <algorithm>
#include <regex>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/listing.h"
#include "hasten/core/sentence.h"

namespace hasten::parallel {
namespace {

void add_node(const torch::nn::Module& module, plan::WrapModule& node, std::set<const torch::nn::Module*>& seen) {
  node.class_name = module.name();
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined())
      node.parameters.push_back({item.key(), item.value().numel(), item.value().unsafeGetTensorImpl()});
  }
  for (const auto& item : module.named_children()) {
    if (!item.value() || !seen.insert(item.value().get()).second) continue;
    node.children.push_back({.name = item.key(), .class_name = {}});
    add_node(*item.value(), node.children.back(), seen);
  }
}

}  // namespace

plan::WrapModule module_tree(const torch::nn::Module& module) {
  plan::WrapModule root;
  std::set<const torch::nn::Module*> seen = {&module};
  add_node(module, root, seen);
  return root;
}

std::vector<std::vector<std::string>> wrap_units(const torch::nn::Module& module, const WrapPolicy& policy,
                                                 const std::vector<std::string>& ignored) {
  const bool by_class = policy.rule == WrapPolicy::Rule::kTransformer;
  const plan::WrapOptions options{.rule = by_class ? plan::WrapRule::kTransformer : plan::WrapRule::kSize,
                                  .version = policy.version,
                                  .classes = policy.classes,
                                  .min_num_params = policy.min_num_params,
                                  .ignored = ignored};
  std::vector<std::vector<std::string>> units;
  for (auto& unit : plan::plan_units(module_tree(module), options)) {
    if (!unit.parameters.empty()) units.push_back(std::move(unit.parameters));
  }
  return units;
}

std::vector<std::string> ignored_names(const torch::nn::Module& module, const std::vector<std::string>& patterns) {
  std::vector<std::string> modules, names, found;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    modules.push_back(item.key());
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  for (const auto& pattern : patterns) {
    const size_t before = found.size();
    for (const auto* all : {&modules, &names}) {
      if (std::find(all->begin(), all->end(), pattern) != all->end()) found.push_back(pattern);
    }
    if (found.size() > before) continue;
    try {
      const std::regex expression(pattern, std::regex::ECMAScript);
      for (const auto& name : modules) {
        if (std::regex_match(name, expression)) found.push_back(name);
      }
    } catch (const std::regex_error& error) {
      throw UsageError(Origin{"shard"}, "ignored_modules: '", pattern, "' is no module, no parameter and no pattern (",
                       error.what(), ").");
    }
    if (found.size() == before) {
      throw UsageError(Origin{"shard"}, "ignored_modules: '", pattern,
                       "' matches no module and no parameter of the model", guess_end(pattern, modules),
                       " The modules are ", core::listing(modules), ".");
    }
  }
  return found;
}

}  // namespace hasten::parallel
