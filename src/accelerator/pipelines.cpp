// See accelerator/pipelines.h.
#include "accelerator/pipelines.h"

#include "hasten/core/error.h"

namespace hasten {
namespace {

parallel::PipelineOptions pipeline_options(const parallel::ParallelOptions& options) {
  return {.stages = options.stages,
          .chunks = options.chunks,
          .microbatches = options.microbatches,
          .order = options.order,
          .chunk_dims = options.chunk_dims};
}

}  // namespace

void Pipelines::divide(torch::nn::Module& module) {
  if (layout_.pipeline().world_size() == 1) return;
  pipelines_.insert_or_assign(&module,
                              parallel::Pipeline(module, layout_.pipeline(), pipeline_options(layout_.options())));
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
