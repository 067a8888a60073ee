// Pipelines: the models of an Accelerator that are divided into stages.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/pipeline/pipeline.h"

namespace hasten {

/// MegatronStages: layers of the last stage, and the rank with which a decoder begins. 0: unset.
struct StageLayers {
  int last = 0, decoder_rank = 0;
  bool is_set() const noexcept { return last > 0 || decoder_rank > 0; }
};

/// Returns the first layer of each stage but the first, by name. Stages have as many layers as each other, but for the
/// last one. With a decoder_rank, stages before it share the layers of the first list of modules. Those from it on
/// share the second's, as evenly as they divide. Throws: UsageError with the numbers that are possible, or for a model
/// of other lists.
std::vector<std::string> uneven_stages(const torch::nn::Module& module, int num_stages, const StageLayers& layers);

class Pipelines {
 public:
  Pipelines(const parallel::Layout& layout, const StageLayers& layers) : layout_(layout), layers_(layers) {}

  /// Divides a model into stages, if the layout has several.
  /// Collective: then. Blocks: then. Throws: as parallel::Pipeline.
  void divide(torch::nn::Module& module);
  /// Returns what is opened round a model's forward; null for a model without stages.
  std::shared_ptr<parallel::ForwardHook> forward_hook(const torch::nn::Module& module) const;
  /// Returns the pipeline of a model that is divided into stages; null for another one.
  const parallel::Pipeline* find(const torch::nn::Module& module) const noexcept;
  /// Returns the pipeline whose steps forward_backward runs; of one stage, made here, where models are whole.
  /// Throws: UsageError if there is another number of models than one.
  const parallel::Pipeline& only(const std::vector<torch::nn::Module*>& modules);

 private:
  parallel::Layout layout_;
  StageLayers layers_;
  std::map<const torch::nn::Module*, parallel::Pipeline> pipelines_ = {};
};

}  // namespace hasten
