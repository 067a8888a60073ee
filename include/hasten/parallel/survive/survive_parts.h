// SurviveParts: the parts of an Accelerator that a loop which outlives dead ranks works on (survive.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/process/process.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/stateful.h"

namespace hasten::parallel {

/// They outlive the call of survive.
struct SurviveParts {
  process::Process process;
  const DistributedModels& models;
  training::StateRegistry& registry;
  training::Accumulation& accumulation;
  std::shared_ptr<training::GradientState> gradients;
  /// Called with the number of committed steps when the ranks have met and have one state.
  std::function<void(int64_t num_steps)> healed = {};
};

}  // namespace hasten::parallel
