// See accelerator/pipelines.h.
#include "accelerator/pipelines.h"

#include <algorithm>
#include <string>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/parallel/pipeline/stage_plan.h"

namespace hasten {
namespace {

parallel::PipelineOptions pipeline_options(const parallel::ParallelOptions& options) {
  return {.stages = options.stages,
          .chunks = options.chunks,
          .microbatches = options.microbatches,
          .order = options.order,
          .activation_mib = options.activation_mib,
          .chunk_dims = options.chunk_dims};
}

// Elements of lists of modules, as plan_stages cuts them, in the order of their registration.
std::vector<std::string> layers_of(const torch::nn::Module& module) {
  std::vector<std::string> layers;
  for (const auto& one : parallel::stage_modules(module)) {
    const size_t dot = one.block.rfind('.');
    const std::string last = dot == std::string::npos ? one.block : one.block.substr(dot + 1);
    const bool is_layer = !last.empty() && last.find_first_not_of("0123456789") == std::string::npos;
    if (is_layer && std::find(layers.begin(), layers.end(), one.block) == layers.end()) layers.push_back(one.block);
  }
  return layers;
}

std::string list_of(const std::string& layer) {
  return layer.substr(0, layer.rfind('.') == std::string::npos ? 0 : layer.rfind('.'));
}

// Layers of each stage; `last`: those of the last one, 0 for as many as the others.
std::vector<int> layer_counts(int layers, int stages, int last) {
  if (last == 0) {
    std::vector<int> counts;
    for (int i = 0; i < stages; ++i) counts.push_back(layers * (i + 1) / stages - layers * i / stages);
    return counts;
  }
  const int others = stages - 1, rest = layers - last;
  if (others == 0 ? rest == 0 : rest >= others && rest % others == 0) {
    std::vector<int> counts(static_cast<size_t>(others), others == 0 ? 0 : rest / others);
    counts.push_back(last);
    return counts;
  }
  std::vector<int> possible;
  for (int each = 1; others > 0 && each * others < layers; ++each) possible.push_back(layers - each * others);
  throw UsageError(Origin{"accelerator"}, "decoder_last_pipeline_num_layers = ", last, ": of ", layers,
                   " layers it leaves ", rest, " to ", others, " stages, which is no multiple. Choose ",
                   possible.empty() ? text("fewer stages") : text("one of ", join(possible)), ".");
}

int chunks_of_layers(const torch::nn::Module& module, int layers, int ranks) {
  const int all = static_cast<int>(layers_of(module).size()), round = layers * ranks;
  if (all > 0 && all % round == 0) return all / round;
  throw UsageError(Origin{"accelerator"}, "layers_per_stage = ", layers, " on ", ranks, " ranks of pp: the model has ",
                   all, " layers, which is no multiple of ", round, ". Choose a divisor of ", all / std::max(ranks, 1),
                   ", or leave it out.");
}

}  // namespace

std::vector<std::string> uneven_stages(const torch::nn::Module& module, int num_stages, const StageLayers& layers) {
  const auto all = layers_of(module);
  const int count = static_cast<int>(all.size());
  std::vector<int> counts;
  if (layers.decoder_rank == 0) {
    counts = layer_counts(count, num_stages, layers.last);
  } else {
    std::vector<std::string> lists;
    for (const auto& layer : all) {
      if (lists.empty() || lists.back() != list_of(layer)) lists.push_back(list_of(layer));
    }
    if (lists.size() != 2) {
      throw UsageError(Origin{"accelerator"}, "pipeline_model_parallel_split_rank = ", layers.decoder_rank,
                       ": the model has ", lists.size(), " lists of layers", lists.empty() ? "" : ", ", join(lists),
                       "; expected an encoder's and a decoder's. Leave it out, or name stages in "
                       "AcceleratorOptions::parallel.stages.");
    }
    const int first = static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const auto& layer) { return list_of(layer) == lists.front(); }));
    counts = layer_counts(first, layers.decoder_rank, 0);
    const auto behind = layer_counts(count - first, num_stages - layers.decoder_rank, layers.last);
    counts.insert(counts.end(), behind.begin(), behind.end());
  }
  if (std::any_of(counts.begin(), counts.end(), [](int own) { return own < 1; })) {
    throw UsageError(Origin{"accelerator"}, "the model has ", count, " layers, and stages would hold ", join(counts),
                     " of them; expected at least 1 each. Use fewer stages (pp_degree), or another split rank.");
  }
  std::vector<std::string> names;
  size_t next = 0;
  for (size_t stage = 0; stage + 1 < counts.size(); ++stage) {
    next += static_cast<size_t>(counts[stage]);
    names.push_back(all[next]);
  }
  return names;
}

void Pipelines::divide(torch::nn::Module& module) {
  if (layout_.pipeline().world_size() == 1) return;
  auto options = pipeline_options(layout_.options());
  if (const int layers = layout_.options().layers_per_stage; layers > 0) {
    options.chunks = chunks_of_layers(module, layers, layout_.pipeline().world_size());
  }
  if (layers_.is_set()) options.stages = uneven_stages(module, layout_.pipeline().world_size(), layers_);
  options.order_groups = {layout_.model(), layout_.data()};
  options.place = layout_.place();
  pipelines_.insert_or_assign(&module, parallel::Pipeline(module, layout_.pipeline(), options));
}

std::shared_ptr<parallel::ForwardHook> Pipelines::forward_hook(const torch::nn::Module& module) const {
  const auto found = pipelines_.find(&module);
  return found == pipelines_.end() ? nullptr : found->second.forward_hook();
}

const parallel::Pipeline* Pipelines::find(const torch::nn::Module& module) const noexcept {
  const auto found = pipelines_.find(&module);
  return found == pipelines_.end() || layout_.pipeline().world_size() == 1 ? nullptr : &found->second;
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
