// FlopsReport: floating-point operations and times of one step (DeepSpeed's flops_profiler).
//
// A policy of prepared optimizers' steps. Operators of the profiled step's forward are counted by libtorch's own
// formulas, in the thread that runs it. Modules of libtorch's C++ API have no hooks, so the table lists operators.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "hasten/training/step_policy.h"

namespace hasten {

struct FlopsReportOptions {
  /// Steps of the optimizer before the profiled one.
  int64_t profile_step = 1;
  /// Gets the report.
  std::function<void(const std::string&)> print = {};
};

/// Operators by name: calls, and operations by libtorch's formulas.
struct OperatorFlops {
  int64_t calls = 0;
  uint64_t flops = 0;
};
using FlopsByOperator = std::map<std::string, OperatorFlops>;

class FlopsReport : public training::StepPolicy {
 public:
  explicit FlopsReport(FlopsReportOptions options);
  ~FlopsReport() override;
  FlopsReport(const FlopsReport&) = delete;
  FlopsReport& operator=(const FlopsReport&) = delete;

  /// To be called round each backward.
  void begin_backward();
  void end_backward();
  void after_step(training::StepContext& context) override;

 private:
  using Clock = std::chrono::steady_clock;
  void begin_forward();
  void end_forward();
  std::string report(const torch::optim::Optimizer& optimizer) const;

  FlopsReportOptions options_;
  const torch::optim::Optimizer* counted_ = nullptr;
  int64_t num_steps_ = 0;
  bool is_due_ = false;
  at::CallbackHandle handle_ = 0;
  FlopsByOperator operators_;
  Clock::time_point began_ = {};
  double forward_ms_ = 0, backward_ms_ = 0;
};

}  // namespace hasten
