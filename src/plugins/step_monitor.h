// StepMonitor: the values that DeepSpeed's monitors get, for the trackers of a run (DeepSpeed's MonitorMaster).
//
// A policy of prepared optimizers' steps. After each step it logs the mean loss of the window's backwards on this rank
// and the learning rate, under DeepSpeed's names. Of several optimizers the first one that steps is counted.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "hasten/tracking/run/trackers.h"
#include "hasten/training/step_policy.h"

namespace hasten {

struct StepMonitorOptions {
  /// Name of the run's project, if the program has not called init_trackers before the first step.
  std::string project = "DeepSpeedJobName";
  /// Options of trackers, a map each, for that case.
  tracking::Config init_kwargs = {};
  /// Samples of all ranks in one step: the horizontal axis counts them.
  std::function<int64_t()> samples_per_step = {};
};

class StepMonitor : public training::StepPolicy {
 public:
  StepMonitor(tracking::Trackers trackers, StepMonitorOptions options)
      : trackers_(std::move(trackers)), options_(std::move(options)) {}

  /// Takes the loss of a backward.
  void note_loss(const at::Tensor& loss);
  void after_step(training::StepContext& context) override;

 private:
  tracking::Trackers trackers_;
  StepMonitorOptions options_;
  const torch::optim::Optimizer* counted_ = nullptr;
  at::Tensor loss_ = {};
  int64_t num_losses_ = 0, num_steps_ = 0;
};

}  // namespace hasten
