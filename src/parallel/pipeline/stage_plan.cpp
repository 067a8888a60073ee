// See stage_plan.h.
#include "hasten/parallel/pipeline/stage_plan.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/listing.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/plan/balance.h"

namespace hasten::parallel {
namespace {

constexpr Origin kPlanOrigin{"pipeline"};

bool is_module_list(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

double cost_of(const torch::nn::Module& module) {
  // A table is read, and not multiplied.
  const bool is_table = module.as<torch::nn::EmbeddingImpl>() != nullptr;
  double cost = 0;
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    cost += 1e-3 * static_cast<double>(parameter.nbytes());
    if (!is_table) cost += static_cast<double>(parameter.numel());
  }
  return cost;
}

void visit_modules(const torch::nn::Module& module, const std::string& name, const std::string& block,
                   std::vector<StageModule>& found) {
  if (!module.parameters(/*recurse=*/false).empty()) {
    found.push_back({name, block.empty() ? name : block, cost_of(module)});
  }
  for (const auto& child : module.named_children()) {
    const std::string own = name.empty() ? child.key() : name + "." + child.key();
    const bool begins_block = block.empty() && is_module_list(module);
    visit_modules(*child.value(), own, begins_block ? own : block, found);
  }
}

bool is_below(const std::string& name, const std::string& top) {
  return name == top || name.starts_with(top + ".");
}

std::vector<int> stages_by_names(const std::vector<StageModule>& modules, const std::vector<std::string>& names) {
  std::vector<size_t> begins;
  for (const std::string& name : names) {
    const auto found = std::find_if(modules.begin(), modules.end(),
                                    [&](const StageModule& module) { return is_below(module.name, name); });
    if (found == modules.end()) {
      std::vector<std::string> known, blocks;
      for (const StageModule& module : modules) {
        known.push_back(module.name);
        const bool is_named = !module.block.empty();  // a model of one module has no names
        if (is_named && std::find(blocks.begin(), blocks.end(), module.block) == blocks.end())
          blocks.push_back(module.block);
      }
      known.insert(known.end(), blocks.begin(), blocks.end());
      throw UsageError(kPlanOrigin, "stages: '", name, "' is no module with parameters", guess_end(name, known),
                       " Name the first module of each stage behind the first; the model has ", core::listing(blocks),
                       ".");
    }
    const auto begin = static_cast<size_t>(found - modules.begin());
    if (begin <= (begins.empty() ? 0 : begins.back())) {
      throw UsageError(kPlanOrigin, "stages: '", name, "' does not come behind the first module of the stage before (",
                       begins.empty() ? modules.front().name : modules[begins.back()].name,
                       "). Name the modules in the order of their registration.");
    }
    begins.push_back(begin);
  }
  std::vector<int> stages;
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto behind = std::upper_bound(begins.begin(), begins.end(), i);
    stages.push_back(static_cast<int>(behind - begins.begin()));
  }
  return stages;
}

}  // namespace

std::vector<StageModule> stage_modules(const torch::nn::Module& module) {
  std::vector<StageModule> found;
  visit_modules(module, "", "", found);
  return found;
}

std::vector<int> plan_stages(const std::vector<StageModule>& modules, int num_stages,
                             const std::vector<std::string>& first_modules) {
  if (num_stages == 1) return std::vector<int>(modules.size(), 0);
  if (!first_modules.empty()) {
    if (static_cast<int>(first_modules.size()) == num_stages - 1) return stages_by_names(modules, first_modules);
    throw UsageError(kPlanOrigin, "stages names ", first_modules.size(), " modules; expected ", num_stages - 1,
                     ", the first module of each of the ", num_stages, " stages but the first.");
  }
  std::vector<double> costs;
  std::vector<size_t> block_of;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (i == 0 || modules[i].block != modules[i - 1].block) costs.push_back(0);
    costs.back() += modules[i].cost;
    block_of.push_back(costs.size() - 1);
  }
  if (static_cast<int>(costs.size()) < num_stages) {
    throw UsageError(kPlanOrigin, "the model has ", costs.size(), " blocks for ", num_stages,
                     " stages. Use fewer stages, or name their first modules in stages, which may cut blocks.");
  }
  const auto begins = plan::balance(costs, num_stages);
  std::vector<int> stages;
  for (const size_t block : block_of) {
    const auto behind = std::upper_bound(begins.begin(), begins.end(), block);
    stages.push_back(static_cast<int>(behind - begins.begin()) - 1);
  }
  return stages;
}

}  // namespace hasten::parallel
