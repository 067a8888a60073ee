// See wrap_policy.h.
#include "hasten/settings/wrap_policy.h"

#include <algorithm>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

std::string short_class(const std::string& class_name) {
  const auto colons = class_name.rfind("::");
  const auto dot = class_name.rfind('.');  // TorchScript: "__torch__.net.Block"
  if (colons != std::string::npos) return class_name.substr(colons + 2);
  return dot == std::string::npos ? class_name : class_name.substr(dot + 1);
}

bool is_list(const std::string& class_name) {
  for (const char* each : {"ModuleList", "ModuleDict"}) {
    if (class_matches(class_name, each)) return true;
  }
  return false;
}

using Ids = std::set<const void*>;

/// A module with its whole name, and which of them become units.
class Planner {
 public:
  Planner(const WrapModule& model, const WrapOptions& options) : model_(model), options_(options) {}

  std::vector<WrapUnit> units() {
    collect_ignored(model_, "", false);
    if (options_.rule == WrapRule::kTransformer) require_classes();
    const bool asks =
        options_.rule == WrapRule::kTransformer || (options_.rule == WrapRule::kSize && options_.min_num_params > 0);
    if (asks) {
      for (const auto& child : model_.children) {
        if (options_.version == 1) {
          wrap_1(child, child.name);
        } else {
          wrap_2(child, child.name);
        }
      }
    }
    units_.push_back({.module = ""});
    Ids taken;
    assign(model_, "", 0, taken);
    return std::move(units_);
  }

 private:
  bool is_ignored(const std::string& name) const {
    return std::find(options_.ignored.begin(), options_.ignored.end(), name) != options_.ignored.end();
  }
  static std::string below(const std::string& name, const std::string& child) {
    return name.empty() ? child : name + "." + child;
  }

  void collect_ignored(const WrapModule& module, const std::string& name, bool inside) {
    inside = inside || (!name.empty() && is_ignored(name));
    if (inside) {
      for (const auto& parameter : module.parameters) ignored_.insert(parameter.id);
    }
    for (const auto& child : module.children) collect_ignored(child, below(name, child.name), inside);
  }

  void parameters_below(const WrapModule& module, Ids& ids, int64_t& numel, bool with_ignored) const {
    for (const auto& parameter : module.parameters) {
      if (!with_ignored && ignored_.count(parameter.id) > 0) continue;
      if (ids.insert(parameter.id).second) numel += parameter.numel;
    }
    for (const auto& child : module.children) parameters_below(child, ids, numel, with_ignored);
  }

  int64_t numel_below(const WrapModule& module) const {
    Ids ids;
    int64_t numel = 0;
    parameters_below(module, ids, numel, false);
    return numel;
  }

  bool matches(const WrapModule& module) const {
    return std::any_of(options_.classes.begin(), options_.classes.end(),
                       [&](const std::string& requested) { return class_matches(module.class_name, requested); });
  }

  void classes_of(const WrapModule& module, std::set<std::string>& names) const {
    names.insert(short_class(module.class_name));
    for (const auto& child : module.children) classes_of(child, names);
  }

  void require_classes() const {
    std::set<std::string> there;
    classes_of(model_, there);
    const std::vector<std::string> names(there.begin(), there.end());
    for (const auto& requested : options_.classes) {
      if (has_class(model_, requested)) continue;
      throw UsageError(Origin{"shard"}, "no module has the class ", requested,
                       ", which transformer_cls_names_to_wrap names", guess_end(requested, names),
                       " The model's classes are ", join(names), ".");
    }
  }

  static bool has_class(const WrapModule& module, const std::string& requested) {
    return class_matches(module.class_name, requested) ||
           std::any_of(module.children.begin(), module.children.end(),
                       [&](const auto& child) { return has_class(child, requested); });
  }

  /// Elements that became units below and at this module (torch's _recursive_wrap).
  int64_t wrap_1(const WrapModule& module, const std::string& name) {
    if (is_ignored(name)) return 0;
    const bool by_class = options_.rule == WrapRule::kTransformer;
    const int64_t all = numel_below(module);
    const bool recurses =
        by_class || (all >= options_.min_num_params && !class_matches(module.class_name, "MultiheadAttention"));
    // A module that is not recursed into is not considered itself either, but for a leaf by force.
    if (!recurses && all < options_.min_num_params) return 0;
    int64_t wrapped = 0;
    if (recurses) {
      for (const auto& child : module.children) wrapped += wrap_1(child, below(name, child.name));
    }
    const int64_t rest = all - wrapped;
    const bool becomes = by_class ? matches(module) : rest >= options_.min_num_params && !is_list(module.class_name);
    if (!recurses || !becomes) return wrapped;
    wrapped_.insert(name);
    return all;
  }

  /// Children first; every module that fits (Accelerate's fsdp2_prepare_auto_wrap_policy).
  void wrap_2(const WrapModule& module, const std::string& name) {
    if (is_ignored(name)) return;
    for (const auto& child : module.children) wrap_2(child, below(name, child.name));
    const bool becomes =
        options_.rule == WrapRule::kTransformer ? matches(module) : numel_below(module) > options_.min_num_params;
    if (becomes) wrapped_.insert(name);
  }

  void assign(const WrapModule& module, const std::string& name, size_t unit, Ids& taken) {
    if (!name.empty() && wrapped_.count(name) > 0) {
      units_.push_back({.module = name});
      unit = units_.size() - 1;
    }
    for (const auto& parameter : module.parameters) {
      if (ignored_.count(parameter.id) > 0 || !taken.insert(parameter.id).second) continue;
      units_[unit].parameters.push_back(below(name, parameter.name));
    }
    for (const auto& child : module.children) assign(child, below(name, child.name), unit, taken);
  }

  const WrapModule& model_;
  const WrapOptions& options_;
  Ids ignored_;
  std::set<std::string> wrapped_;
  std::vector<WrapUnit> units_;
};

}  // namespace

bool class_matches(const std::string& class_name, const std::string& requested) {
  const std::string name = short_class(class_name);
  return class_name == requested || name == requested || name == requested + "Impl";
}

std::vector<WrapUnit> plan_units(const WrapModule& model, const WrapOptions& options) {
  return Planner(model, options).units();
}

}  // namespace hasten::plan
