// StepReport: a line every few steps of the optimizer, as a DeepSpeed configuration requests (steps_per_print,
// wall_clock_breakdown, memory_breakdown).
//
// A policy of prepared optimizers' steps. Of several optimizers the first one that steps is counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "hasten/training/step_policy.h"

namespace hasten::parallel {

struct StepReportOptions {
  int64_t every_steps = 10;
  /// Mean milliseconds a step: forward and data, backward, step.
  bool times = false;
  /// Megabytes of this process, and those of them that it shares with others.
  bool memory = false;
};

class StepReport : public training::StepPolicy {
 public:
  /// `print` gets each line.
  StepReport(const StepReportOptions& options, std::function<void(const std::string&)> print);

  /// To be called round each backward.
  void begin_backward() noexcept { began_ = Clock::now(); }
  void end_backward() noexcept { backward_ms_ += since(began_); }

  void before_step(training::StepContext& context) override;
  void after_step(training::StepContext& context) override;

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point begin) noexcept;
  std::string line(const torch::optim::Optimizer& optimizer) const;

  StepReportOptions options_;
  std::function<void(const std::string&)> print_;
  const torch::optim::Optimizer* counted_ = nullptr;
  int64_t num_steps_ = 0, num_skipped_ = 0;
  Clock::time_point began_ = Clock::now(), step_began_ = began_, reported_ = began_;
  double backward_ms_ = 0, step_ms_ = 0;
};

}  // namespace hasten::parallel
