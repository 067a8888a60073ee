// See wire_dtype.h.
#include "parallel/ddp/wire_dtype.h"

#include <algorithm>
#include <string>

#include "hasten/plan/module_tree.h"

namespace hasten::parallel {

std::vector<bool> in_communication_dtype(const ParameterSet& parameters, const DdpOptions& options) {
  const auto& classes = options.communication_classes;
  std::vector<bool> all;
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    const bool is_chosen = classes.empty() || std::any_of(classes.begin(), classes.end(), [&](const std::string& one) {
                             return plan::short_class_name(one) == parameters.classes[i];
                           });
    all.push_back(options.communication_dtype && is_chosen && c10::isFloatingType(parameters.tensors[i].scalar_type()));
  }
  return all;
}

BucketPlan split_by_wire(const BucketPlan& plan, const std::vector<bool>& travels_low) {
  BucketPlan split;
  for (const auto& members : plan) {
    std::vector<size_t> low, own;
    for (const size_t member : members) (travels_low[member] ? low : own).push_back(member);
    for (auto* part : {&low, &own}) {
      if (!part->empty()) split.push_back(std::move(*part));
    }
  }
  return split;
}

}  // namespace hasten::parallel
