// Which module is on which stage of a pipeline: pure functions of names and costs.
//
// Modules are taken in the order in which they were registered, and cut into contiguous stages. Where the order of a
// forward is another one, results stay right: an operator runs on the highest stage among its inputs.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace hasten::parallel {

/// A module with parameters of its own.
struct StageModule {
  std::string name = {};
  /// The element of a list of modules that holds it ("layers.3"), which stays whole; else its own name.
  std::string block = {};
  /// Multiplications for a token, and a thousandth of its bytes.
  double cost = 0;
};

/// Returns the modules with parameters, in the order of their registration.
std::vector<StageModule> stage_modules(const torch::nn::Module& module);

/// Returns the stage of each module. `first_modules`: the first module of each stage but the first; a name stands for
/// what is below it, too. Empty: blocks are cut so that the most expensive stage costs least.
/// Throws: UsageError for another number of names than num_stages - 1, a name that is no
/// module's, names out of order, and more stages than blocks.
std::vector<int> plan_stages(const std::vector<StageModule>& modules, int num_stages,
                             const std::vector<std::string>& first_modules);

}  // namespace hasten::parallel
