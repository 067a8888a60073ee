// The reports and monitors of a DeepSpeed configuration (see plugins.h).
#include <algorithm>
#include <cmath>
#include <fstream>

#include "hasten/core/error.h"
#include "hasten/plugins/plugins.h"
#include "hasten/process/print.h"
#include "plugins/flops_report.h"
#include "plugins/step_monitor.h"
#include "plugins/step_report.h"

namespace hasten {

void Plugins::report_steps(training::GradientState& gradients, const process::Process& process) {
  if (plugins_.empty() || !process.is_main_process()) return;
  report_flops(gradients, process);
  const auto& settings = plugins_.front().second;
  const auto resolved = plan::resolve_deepspeed(settings.config, world_size_, false);
  const bool times = resolved.on("wall_clock_breakdown"), memory = resolved.on("memory_breakdown");
  const auto& every = settings.steps_per_print;
  const bool is_number = every.is_number() && std::isfinite(every.as_double()) && every.as_double() >= 1;
  if (!is_number && !times && !memory) return;
  const int64_t steps = is_number ? static_cast<int64_t>(std::min(every.as_double(), 9.0e15)) : 10;
  report_ = std::make_shared<parallel::StepReport>(
      parallel::StepReportOptions{.every_steps = steps, .times = times, .memory = memory},
      [process](const std::string& line) { process::print_once(process, line); });
  gradients.step_policies().add(training::StepOrder::kAfter, report_);
}

void Plugins::monitor_steps(training::GradientState& gradients, const tracking::Trackers& trackers,
                            const process::Process& process) {
  const std::vector<std::string> sections = {"tensorboard", "csv_monitor", "wandb", "comet"};
  const bool any = uses_deepspeed() && std::any_of(sections.begin(), sections.end(), [&](const std::string& section) {
                     return plugins_.front().second.config.is_true(section + ".enabled");
                   });
  if (!any || !process.is_main_process()) return;
  StepMonitorOptions options{.init_kwargs = monitor_kwargs_, .samples_per_step = [front = shared_from_this()] {
                               const auto& config = front->selected().config;
                               const auto batch = config.get_value("train_batch_size");
                               if (batch.is_number()) return static_cast<int64_t>(batch.as_double());
                               // It follows from the micro batch, if that is there.
                               const auto numbers = plan::resolve_deepspeed(config, front->world_size_, false).batch;
                               return std::max<int64_t>(1, numbers.train);
                             }};
  if (!monitor_project_.empty()) options.project = monitor_project_;
  const auto monitor = std::make_shared<StepMonitor>(trackers, std::move(options));
  monitor_ = monitor;
  gradients.step_policies().add(training::StepOrder::kAfter, monitor);
}

void Plugins::begin_backward(const at::Tensor& loss) const {
  if (const auto monitor = monitor_.lock()) monitor->note_loss(loss);
  if (report_) report_->begin_backward();
  if (flops_) flops_->begin_backward();
}

void Plugins::end_backward() const {
  if (report_) report_->end_backward();
  if (flops_) flops_->end_backward();
}

void Plugins::report_flops(training::GradientState& gradients, const process::Process& process) {
  const auto& config = plugins_.front().second.config;
  if (!config.is_true("flops_profiler.enabled")) return;
  const auto step = config.get_value("flops_profiler.profile_step"),
             file = config.get_value("flops_profiler.output_file");
  FlopsReportOptions options{.print = [process, file](const std::string& report) {
    if (!file.is_string()) return process::print_once(process, report);
    std::ofstream stream(file.as_string(), std::ios::app);
    stream << report << '\n';
    if (!stream)
      throw DataError(Origin{"accelerator"}, file.as_string(), "flops_profiler.output_file cannot be written.");
  }};
  if (step.is_number()) options.profile_step = static_cast<int64_t>(step.as_double());
  flops_ = std::make_shared<FlopsReport>(std::move(options));
  gradients.step_policies().add(training::StepOrder::kAfter, flops_);
}

}  // namespace hasten
