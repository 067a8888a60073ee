// See deepspeed.h.
#include "hasten/optim/schedulers/deepspeed.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/parameter_groups.h"

namespace hasten::optim::deepspeed {
namespace {

constexpr double kBeta2 = 0.99;

double warmup_part(double step, double steps, WarmupType type) {
  return type == WarmupType::kLog ? std::log(step + 1) / std::log(steps) : step / steps;
}

double warmup_steps(int64_t steps, std::string_view name) {
  detail::require(steps >= 1, name, "warmup_num_steps", steps, "at least 1");
  return static_cast<double>(std::max<int64_t>(2, steps));
}

double total_steps(int64_t steps, std::string_view name) {
  detail::require(steps >= 1, name, "total_num_steps", steps, "at least 1");
  return static_cast<double>(steps);
}

/// Calls `set` with a group's options if they have betas. Returns false if they have none.
bool set_betas(torch::optim::Optimizer& optimizer, size_t group, double beta1) {
  auto& options = optimizer.param_groups().at(group).options();
  const auto betas = std::make_tuple(beta1, kBeta2);
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return adam->betas(betas), true;
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return adamw->betas(betas), true;
  return false;
}

bool has_betas(torch::optim::Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  return !groups.empty() && (dynamic_cast<torch::optim::AdamOptions*>(&groups[0].options()) != nullptr ||
                             dynamic_cast<torch::optim::AdamWOptions*>(&groups[0].options()) != nullptr);
}

}  // namespace

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, const Options& options)
    : WarmupLR(optimizer, "WarmupLR", options) {
  start();
}

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, std::string own_name, const Options& options)
    : Scheduler(optimizer, std::move(own_name)),
      type_(options.warmup_type),
      steps_(warmup_steps(options.warmup_num_steps, name())),
      min_(options.warmup_min_lr.expand(num_groups(), name(), "warmup_min_lr")),
      max_(options.warmup_max_lr.empty() ? base_lrs()
                                         : options.warmup_max_lr.expand(num_groups(), name(), "warmup_max_lr")) {}

double WarmupLR::rate(size_t group, double, Moment) const {
  const double step = static_cast<double>(last_epoch()) - 1;
  if (step < 0) return min_[group];
  const double part = step < steps_ ? warmup_part(step, steps_, type_) : after_warmup(step);
  return min_[group] + (max_[group] - min_[group]) * part;
}

WarmupDecayLR::WarmupDecayLR(torch::optim::Optimizer& optimizer, const Options& options)
    : WarmupLR(optimizer, "WarmupDecayLR",
               {.warmup_min_lr = options.warmup_min_lr,
                .warmup_max_lr = options.warmup_max_lr,
                .warmup_num_steps = options.warmup_num_steps,
                .warmup_type = options.warmup_type}),
      total_(total_steps(options.total_num_steps, name())) {
  start();
}

double WarmupDecayLR::after_warmup(double step) const {
  return std::max(0.0, (total_ - step) / std::max(1.0, total_ - steps()));
}

WarmupCosineLR::WarmupCosineLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "WarmupCosineLR"), options_(options) {
  total_steps(options.total_num_steps, name());
  warmup_steps(options.warmup_num_steps, name());
  start();
}

double WarmupCosineLR::rate(size_t group, double, Moment) const {
  const double step = static_cast<double>(last_epoch()) - 1, warm = warmup_steps(options_.warmup_num_steps, name());
  if (step < 0) return 0.0;
  if (step < warm) {
    const double least = options_.warmup_min_ratio;
    return base_lr(group) * (least + (1 - least) * warmup_part(step, warm, options_.warmup_type));
  }
  const double total = static_cast<double>(options_.total_num_steps), least = options_.cos_min_ratio;
  const double part = std::min(1.0, (step - warm + 1) / std::max(1.0, total - warm));
  return base_lr(group) * std::max(0.0, least + (1 - least) * (1 + std::cos(std::numbers::pi * part)) / 2);
}

LRRangeTest::LRRangeTest(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "LRRangeTest"),
      options_(options),
      min_(options.lr_range_test_min_lr.expand(num_groups(), name(), "lr_range_test_min_lr")) {
  detail::require(options.lr_range_test_step_size >= 1, name(), "lr_range_test_step_size",
                  options.lr_range_test_step_size, "at least 1");
  start();
}

double LRRangeTest::rate(size_t group, double, Moment) const {
  double interval = static_cast<double>(last_epoch()) / static_cast<double>(options_.lr_range_test_step_size);
  if (options_.lr_range_test_staircase) interval = std::floor(interval);
  return min_[group] * (1 + options_.lr_range_test_step_rate * interval);
}

OneCycle::OneCycle(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "OneCycle"),
      options_(options),
      min_(options.cycle_min_lr.expand(num_groups(), name(), "cycle_min_lr")),
      max_(options.cycle_max_lr.expand(num_groups(), name(), "cycle_max_lr")),
      min_mom_(options.cycle_min_mom.expand(num_groups(), name(), "cycle_min_mom")),
      max_mom_(options.cycle_max_mom.expand(num_groups(), name(), "cycle_max_mom")),
      moves_betas_(options.cycle_momentum && has_betas(optimizer)),
      second_(options.cycle_second_step_size.value_or(options.cycle_first_step_size)),
      total_(options.cycle_first_step_size + second_) {
  detail::require(options.cycle_first_step_size > 0, name(), "cycle_first_step_size", options.cycle_first_step_size,
                  "above 0");
  detail::require(second_ >= 0, name(), "cycle_second_step_size", second_, "at least 0");
  detail::require(options.decay_step_size >= 0, name(), "decay_step_size", options.decay_step_size, "at least 0");
  start();
}

void OneCycle::start() {
  Scheduler::start();
  if (!moves_betas_) return;
  for (size_t group = 0; group < num_groups(); ++group) set_betas(optimizer(), group, min_mom_[group]);
}

double OneCycle::height() const {
  const double position = static_cast<double>(last_epoch()) / total_;
  const double part = 1 + position - std::floor(1 + position), ratio = options_.cycle_first_step_size / total_;
  const bool rises = part <= ratio;
  const double value = rises ? part / ratio : (part - 1) / (ratio - 1);
  const int64_t stairs = rises ? options_.cycle_first_stair_count
                               : options_.cycle_second_stair_count.value_or(options_.cycle_first_stair_count);
  // Rounding must not take the top of a stair for the one below.
  return stairs <= 0 ? value : std::floor(value * static_cast<double>(stairs) + 1e-9) / static_cast<double>(stairs);
}

double OneCycle::decay() const {
  const double step = static_cast<double>(last_epoch()) - 1;
  if (step < total_ || options_.decay_step_size == 0) return 0.0;
  return (step - total_ + 1) / options_.decay_step_size;
}

double OneCycle::rate(size_t group, double, Moment) const {
  const double step = static_cast<double>(last_epoch()) - 1;
  if (step < 0) return min_[group];
  if (step < total_) return min_[group] + (max_[group] - min_[group]) * height();
  return min_[group] / (1 + options_.decay_lr_rate * decay());
}

std::optional<double> OneCycle::momentum(size_t group) const {
  if (!moves_betas_) return {};
  const double step = static_cast<double>(last_epoch()) - 1;
  if (step < 0) return min_mom_[group];
  if (step < total_) return max_mom_[group] - (max_mom_[group] - min_mom_[group]) * height();
  return max_mom_[group] * (1 + options_.decay_mom_rate * decay());
}

}  // namespace hasten::optim::deepspeed
