// TorchScheduler: a scheduler of libtorch's own (torch::optim::StepLR and others) as prepare takes it.
//
// libtorch's schedulers hide their optimizer and have no state. The adapter is given the optimizer, and counts the
// steps and stores the rates.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <vector>

#include "hasten/core/value.h"

namespace hasten::optim {

/// Borrows both, which must outlive it: `accelerator.prepare(optim::TorchScheduler(step_lr, sgd))`.
class TorchScheduler {
 public:
  TorchScheduler(torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer) noexcept
      : scheduler_(&scheduler), optimizer_(&optimizer) {}

  void step() { scheduler_->step(); }
  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }
  /// Returns the rates that the optimizer has, one for each parameter group.
  std::vector<double> rates() const;

  /// Returns the number of steps and the rates.
  core::Value state() const;
  /// Throws: UsageError for a state of another number of parameter groups.
  void load_state(const core::Value& state);

 private:
  torch::optim::LRScheduler* scheduler_;
  torch::optim::Optimizer* optimizer_;
};

}  // namespace hasten::optim
