// See step_report.h.
#include "plugins/step_report.h"

#include <torch/optim/optimizer.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::parallel {
namespace {

std::string milliseconds(double total, int64_t steps) {
  return core::fixed_text(total / static_cast<double>(steps), 2);
}

// A line of /proc/self/status in megabytes.
int64_t status_mb(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    int64_t kilobytes = 0;
    std::istringstream(line.substr(key.size())) >> kilobytes;
    return kilobytes / 1024;
  }
  return 0;
}

}  // namespace

StepReport::StepReport(const StepReportOptions& options, std::function<void(const std::string&)> print)
    : options_(options), print_(std::move(print)) {}

double StepReport::since(Clock::time_point begin) noexcept {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void StepReport::before_step(training::StepContext&) {
  step_began_ = Clock::now();
}

void StepReport::after_step(training::StepContext& context) {
  step_ms_ += since(step_began_);
  if (counted_ == nullptr) counted_ = &context.optimizer;
  if (counted_ != &context.optimizer) return;
  ++num_steps_;
  if (context.skip) ++num_skipped_;
  if (num_steps_ % options_.every_steps != 0) return;
  print_(line(context.optimizer));
  backward_ms_ = step_ms_ = 0;
  reported_ = Clock::now();
}

std::string StepReport::line(const torch::optim::Optimizer& optimizer) const {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  std::string words = text("step=", num_steps_, ", skipped=", num_skipped_, ", lr=[", join(rates, ", "), ']');
  const int64_t steps = options_.every_steps;
  if (options_.times) {
    const double rest = since(reported_) - backward_ms_ - step_ms_;
    words += text("; ms a step: forward and data ", milliseconds(rest, steps), ", backward ",
                  milliseconds(backward_ms_, steps), ", step ", milliseconds(step_ms_, steps));
  }
  if (options_.memory) {
    words += text("; MB: resident ", status_mb("VmRSS:"), ", of these shared ", status_mb("RssShmem:"), ", peak ",
                  status_mb("VmHWM:"));
  }
  return words;
}

}  // namespace hasten::parallel
