// Pipelines: the models of an Accelerator that are divided into stages.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>

#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/pipeline/pipeline.h"

namespace hasten {

class Pipelines {
 public:
  explicit Pipelines(const parallel::Layout& layout) : layout_(layout) {}

  /// Divides a model into stages, if the layout has several.
  /// Collective: then. Blocks: then. Throws: as parallel::Pipeline.
  void divide(torch::nn::Module& module);
  /// Returns what is opened round a model's forward; null for a model without stages.
  std::shared_ptr<parallel::ForwardHook> forward_hook(const torch::nn::Module& module) const;
  /// Returns the pipeline whose steps forward_backward runs; of one stage, made here, where models are whole.
  /// Throws: UsageError if there is another number of models than one.
  const parallel::Pipeline& only(const std::vector<torch::nn::Module*>& modules);

 private:
  parallel::Layout layout_;
  std::map<const torch::nn::Module*, parallel::Pipeline> pipelines_ = {};
};

}  // namespace hasten
