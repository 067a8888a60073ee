// See plugins/flops_report.h.
#include "plugins/flops_report.h"

#include <torch/csrc/profiler/util.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten {
namespace {

// Returns the counts of this thread's operators: a callback of libtorch's is a plain function.
FlopsByOperator*& counts_of_thread() {
  thread_local FlopsByOperator* counts = nullptr;
  return counts;
}

std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& called) {
  FlopsByOperator* counts = counts_of_thread();
  if (counts == nullptr) return nullptr;
  const std::string name = called.name();
  const uint64_t flops = torch::profiler::impl::computeFlops(name, torch::profiler::impl::saveExtraArgs(called));
  if (flops == 0) return nullptr;
  auto& own = (*counts)[name];
  ++own.calls;
  own.flops += flops;
  return nullptr;
}

std::string in_units(double value, const char* unit) {
  const char* prefixes[] = {"", "K", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix < 5; ++prefix) value /= 1000;
  return text(core::fixed_text(value, 2), " ", prefixes[prefix], unit);
}

int64_t parameters_of(const torch::optim::Optimizer& optimizer) {
  int64_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) count += parameter.numel();
  }
  return count;
}

}  // namespace

FlopsReport::FlopsReport(FlopsReportOptions options) : options_(std::move(options)) {
  if (options_.profile_step == 0) begin_forward();
}

FlopsReport::~FlopsReport() {
  if (counts_of_thread() == &operators_) end_forward();
}

void FlopsReport::begin_forward() {
  is_due_ = true;
  counts_of_thread() = &operators_;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&count_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  began_ = Clock::now();
}

void FlopsReport::end_forward() {
  if (handle_ == 0) return;
  at::removeCallback(std::exchange(handle_, 0));
  counts_of_thread() = nullptr;
}

// With accumulation the first backward ends the profiled forward.
void FlopsReport::begin_backward() {
  if (handle_ == 0) return;
  end_forward();
  forward_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
  began_ = Clock::now();
}

void FlopsReport::end_backward() {
  if (is_due_ && backward_ms_ == 0) {
    backward_ms_ = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
  }
}

void FlopsReport::after_step(training::StepContext& context) {
  if (counted_ == nullptr) counted_ = &context.optimizer;
  if (counted_ != &context.optimizer) return;
  if (std::exchange(is_due_, false)) {
    end_forward();
    options_.print(report(context.optimizer));
  }
  if (++num_steps_ == options_.profile_step) begin_forward();
}

std::string FlopsReport::report(const torch::optim::Optimizer& optimizer) const {
  double total = 0;
  std::vector<std::pair<std::string, OperatorFlops>> all(operators_.begin(), operators_.end());
  for (const auto& [name, own] : all) total += static_cast<double>(own.flops);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.flops > b.second.flops; });
  std::string words = text("flops profiler, step ", options_.profile_step, ": parameters ", parameters_of(optimizer),
                           ", forward ", in_units(total, "FLOP"), ", latency forward ",
                           in_units(forward_ms_ / 1e3, "s"), ", backward ", in_units(backward_ms_ / 1e3, "s"),
                           ", forward ", in_units(total / std::max(forward_ms_ / 1e3, 1e-9), "FLOP/s"));
  for (const auto& [name, own] : all) {
    words += text("\n  ", name, ": ", own.calls, own.calls == 1 ? " call, " : " calls, ",
                  in_units(static_cast<double>(own.flops), "FLOP"));
  }
  return words;
}

}  // namespace hasten
