// Unit rules of FSDP: which modules of a model become units, by class names or by numbers of parameters.
//
// Pure: a model is a tree of plain nodes, so that the rules of versions 1 and 2 can be tested without tensors. The root
// takes what is in no other unit. A tied parameter belongs to the first module in the model's order that has it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::plan {

/// A parameter: equal `id`s are one tensor.
struct WrapParameter {
  std::string name;
  int64_t numel = 0;
  const void* id = nullptr;
};

/// A module: its own parameters by their last names, and its children in their order. A module that is registered twice
/// is listed at its first place only.
struct WrapModule {
  std::string name;        ///< the last part of its name
  std::string class_name;  ///< as it is written, with its namespace
  std::vector<WrapParameter> parameters = {};
  std::vector<WrapModule> children = {};
};

enum class WrapRule { kNone, kTransformer, kSize };

struct WrapOptions {
  WrapRule rule = WrapRule::kNone;
  int version = 2;
  std::vector<std::string> classes = {};
  int64_t min_num_params = 0;
  /// Whole names of modules that stay out with all below them.
  std::vector<std::string> ignored = {};
};

/// A unit: its module ("" is the root) and the whole names of the parameters that it manages itself, in the model's
/// order.
struct WrapUnit {
  std::string module;
  std::vector<std::string> parameters = {};
};

/// Returns the units, the root's first, the others in the order of the model. The root's may be empty.
/// Throws: UsageError for a class that no module has, with the classes there are.
std::vector<WrapUnit> plan_units(const WrapModule& model, const WrapOptions& options);

/// Returns true if a class's written name is `requested`: whole, its part behind the last "::", or that without "Impl".
bool class_matches(const std::string& class_name, const std::string& requested);

}  // namespace hasten::plan
