// A report of how models are divided. See accelerator/accelerator_state.h and accelerator/parallel_report.h.
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "accelerator/accelerator_state.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/plan/module_tree.h"

namespace hasten {
namespace {

std::vector<ParallelReport::Module> modules_of(const torch::nn::Module& model, const std::map<std::string, int>& stages,
                                               const std::map<std::string, parallel::Cut>& cuts) {
  std::vector<ParallelReport::Module> found;
  model.apply([&](const std::string& path, const torch::nn::Module& part) {
    ParallelReport::Module module{path, plan::short_class_name(part.name()), {}, {}};
    for (const auto& parameter : part.named_parameters(false)) {
      const at::Tensor& value = parameter.value();
      const auto* const staged = parallel::staged_by(value);
      const std::string name = path.empty() ? parameter.key() : path + "." + parameter.key();
      const auto cut = cuts.find(name);
      if (const auto stage = stages.find(name); stage != stages.end())
        module.stage = std::min(module.stage.value_or(stage->second), stage->second);
      module.parameters.push_back({parameter.key(), parallel::whole_sizes(value), value.sizes().vec(),
                                   cut == cuts.end() ? std::string() : parallel::describe(cut->second),
                                   staged == nullptr || staged->holds(value), static_cast<int64_t>(value.nbytes())});
    }
    if (!module.parameters.empty()) found.push_back(std::move(module));
  });
  return found;
}

}  // namespace

ParallelReport AcceleratorState::explain_parallel() const {
  ParallelReport report{.sizes = layout.sizes(),
                        .coordinate = plan::coordinate_text(layout.sizes(), process().rank()),
                        .exchanges = step_exchanges->exchanges(),
                        .num_steps = step_exchanges->num_steps()};
  for (const auto* const model : models.modules()) {
    const auto* const pipeline = pipelines.find(*model);
    auto modules = modules_of(*model, pipeline == nullptr ? std::map<std::string, int>() : pipeline->stages(),
                              step_exchanges->cuts(*model));
    std::move(modules.begin(), modules.end(), std::back_inserter(report.modules));
  }
  return report;
}

}  // namespace hasten
