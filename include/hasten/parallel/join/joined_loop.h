// JoinedLoop: the parts of an Accelerator that a loop of uneven length trains.
#pragma once

#include <memory>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/joinable.h"
#include "hasten/training/stateful.h"

namespace hasten::optim {
struct PreparedOptimizerOptions;
}

namespace hasten::parallel {

class Sharding;
using OptimizerRegistry = training::StateRegistry;

/// All of it must stay valid while the loop runs.
struct JoinedLoop {
  comm::Group group;
  const DistributedModels& models;
  const OptimizerRegistry& optimizer_registry;
  training::Accumulation& accumulation;
  training::GradientState& gradients;
  /// Carries out collectives that are not the models' (operations.h).
  training::Joinable& operations;
  /// Splits state over the ranks, and has the steps of its optimizers. Null where nothing is split.
  std::shared_ptr<Sharding> sharding = {};
  const optim::PreparedOptimizerOptions* optimizer_options = nullptr;
};

}  // namespace hasten::parallel
