// See accelerator/pipelines.h.
#include "accelerator/pipelines.h"

#include <algorithm>
#include <set>
#include <string>

#include "hasten/core/error.h"
#include "hasten/parallel/pipeline/stage_plan.h"

namespace hasten {
namespace {

parallel::PipelineOptions pipeline_options(const parallel::ParallelOptions& options) {
  return {.stages = options.stages,
          .chunks = options.chunks,
          .microbatches = options.microbatches,
          .order = options.order,
          .chunk_dims = options.chunk_dims};
}

// Elements of lists of modules, as plan_stages cuts them.
int chunks_of_layers(const torch::nn::Module& module, int layers, int ranks) {
  std::set<std::string> blocks;
  for (const auto& one : parallel::stage_modules(module)) {
    const size_t dot = one.block.rfind('.');
    const std::string last = dot == std::string::npos ? one.block : one.block.substr(dot + 1);
    if (!last.empty() && last.find_first_not_of("0123456789") == std::string::npos) blocks.insert(one.block);
  }
  const int all = static_cast<int>(blocks.size()), round = layers * ranks;
  if (all > 0 && all % round == 0) return all / round;
  throw UsageError(Origin{"accelerator"}, "layers_per_stage = ", layers, " on ", ranks, " ranks of pp: the model has ",
                   all, " layers, which is no multiple of ", round, ". Choose a divisor of ", all / std::max(ranks, 1),
                   ", or leave it out.");
}

}  // namespace

void Pipelines::divide(torch::nn::Module& module) {
  if (layout_.pipeline().world_size() == 1) return;
  auto options = pipeline_options(layout_.options());
  if (const int layers = layout_.options().layers_per_stage; layers > 0) {
    options.chunks = chunks_of_layers(module, layers, layout_.pipeline().world_size());
  }
  pipelines_.insert_or_assign(&module, parallel::Pipeline(module, layout_.pipeline(), options));
}

std::shared_ptr<parallel::ForwardHook> Pipelines::forward_hook(const torch::nn::Module& module) const {
  const auto found = pipelines_.find(&module);
  return found == pipelines_.end() ? nullptr : found->second.forward_hook();
}

const parallel::Pipeline& Pipelines::only(const std::vector<torch::nn::Module*>& modules) {
  if (modules.size() != 1) {
    throw UsageError(Origin{"accelerator"}, "forward_backward with ", modules.size(),
                     " prepared models; expected one. Put several into one module, and prepare that.");
  }
  const auto found = pipelines_.find(modules.front());
  if (found != pipelines_.end()) return found->second;
  auto options = pipeline_options(layout_.options());
  options.stages.clear();
  options.chunks = 1;
  if (options.microbatches == 0) options.microbatches = 1;
  options.order = plan::OrderKind::kDefault;
  return pipelines_.emplace(modules.front(), parallel::Pipeline(*modules.front(), comm::Group(), options))
      .first->second;
}

}  // namespace hasten
