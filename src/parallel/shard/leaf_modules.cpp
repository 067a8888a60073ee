// See leaf_modules.h.
#include "hasten/parallel/shard/leaf_modules.h"

#include <algorithm>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plan/module_tree.h"
#include "parallel/shard/leaf_units.h"

namespace hasten::parallel {

std::vector<std::string> set_moe_leaf_modules(const std::shared_ptr<Sharding>& sharding, const torch::nn::Module& model,
                                              const std::vector<std::string>& classes) {
  std::set<std::string> there;
  for (const auto& module : model.modules(/*include_self=*/false)) there.insert(plan::short_class_name(module->name()));
  for (const auto& requested : classes) {
    if (!leaf_names(model, {.leaf_classes = {requested}}).empty()) continue;
    const std::vector<std::string> names(there.begin(), there.end());
    throw UsageError(Origin{"shard"}, "no module has the class ", requested,
                     ", which set_moe_leaf_modules (transformer_moe_cls_names) names", guess_end(requested, names),
                     " The model's classes are ", join(names), ".");
  }
  std::vector<std::string> added;
  for (const auto& requested : classes) {
    if (!sharding) break;
    const auto& known = sharding->options().wrap.leaf_classes;
    if (std::find(known.begin(), known.end(), requested) == known.end()) added.push_back(requested);
  }
  if (!added.empty()) sharding->add_leaf_classes(added);
  return leaf_names(model, {.leaf_classes = classes});
}

}  // namespace hasten::parallel
