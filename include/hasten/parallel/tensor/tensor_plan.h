// TensorPlan: names of modules and styles, as transformers writes them (base_model_tp_plan), and the cuts they come to.
//
// Pure functions of names and sizes. In a name, `*` stands for one number and `**` for any text. A name is a whole one,
// or the end of one behind a dot.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/parallel/layout/cut.h"

namespace hasten::parallel {

/// {"layers.*.fc1", "colwise"}. Styles: colwise, rowwise, packed_colwise, packed_rowwise (with ":3", the blocks),
/// embedding_rowwise, embedding_colwise; and those that leave parameters whole: replicate, sequence_parallel,
/// all_reduce, replicated_with_grad_allreduce. colwise_gather_output and rowwise_split_input are colwise and rowwise:
/// values are gathered and cut where they are used.
using TensorPlan = std::vector<std::pair<std::string, std::string>>;

/// A parameter that a plan may cut.
struct PlanParameter {
  std::string name = {};
  std::vector<int64_t> sizes = {};
  bool is_embedding = false;
  /// Equal for names of one tensor.
  const void* identity = nullptr;
};

/// Returns true if a plan's name stands for this module or parameter.
bool plan_name_matches(std::string_view pattern, std::string_view name);

/// Returns the modules that a plan's name stands for, in their order.
std::vector<std::string> matching_modules(std::string_view pattern, const std::vector<std::string>& modules);

/// Returns the cut of each parameter that is cut, by its first name.
/// Throws: UsageError with all conflicts: an unknown style, a name without a match, two
/// cuts of one parameter, blocks that do not divide.
std::map<std::string, Cut> resolve_plan(const TensorPlan& plan, const std::vector<PlanParameter>& parameters,
                                        int num_parts);

}  // namespace hasten::parallel
