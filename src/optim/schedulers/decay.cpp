// Rates that are multiplied at given steps; see decay.h.
#include "hasten/optim/schedulers/decay.h"

#include <algorithm>
#include <cmath>

#include "optim/parameter_groups.h"

namespace hasten::optim {
namespace {

void require_gamma(double gamma, std::string_view name) {
  detail::require(std::isfinite(gamma) && gamma > 0, name, "gamma", gamma, "a number above 0");
}

void require_iters(int64_t total_iters, std::string_view name) {
  detail::require(total_iters >= 1, name, "total_iters", total_iters, "at least 1");
}

}  // namespace

StepLR::StepLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "StepLR"), options_(options) {
  detail::require(options.step_size >= 1, name(), "step_size", options.step_size, "at least 1");
  require_gamma(options.gamma, name());
  note_options(core::Value::map({{"step_size", options.step_size}, {"gamma", options.gamma}}));
  start();
}

double StepLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group);
  const bool decays = last_epoch() != 0 && last_epoch() % options_.step_size == 0;
  return decays ? before * options_.gamma : before;
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "MultiStepLR"), options_(options) {
  const auto& milestones = options.milestones;
  detail::require(!milestones.empty(), name(), "milestones", "{}", "at least one step");
  detail::require(std::is_sorted(milestones.begin(), milestones.end()) && milestones.front() >= 0, name(), "milestones",
                  text("{", join(milestones), "}"), "steps from 0 on, in ascending order");
  require_gamma(options.gamma, name());
  note_options(core::Value::map({{"milestones", options.milestones}, {"gamma", options.gamma}}));
  start();
}

double MultiStepLR::rate(size_t group, double before, Moment moment) const {
  const auto& milestones = options_.milestones;
  const auto times = std::count(milestones.begin(), milestones.end(), last_epoch());
  const double from = moment == Moment::kRestart ? base_lr(group) : before;
  return times == 0 ? from : from * std::pow(options_.gamma, static_cast<double>(times));
}

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "ConstantLR"), options_(options) {
  detail::require(options.factor > 0 && options.factor <= 1, name(), "factor", options.factor, "above 0 and at most 1");
  require_iters(options.total_iters, name());
  note_options(core::Value::map({{"factor", options.factor}, {"total_iters", options.total_iters}}));
  start();
}

double ConstantLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group) * options_.factor;
  if (last_epoch() == 0) return before * options_.factor;
  return last_epoch() == options_.total_iters ? before * (1.0 / options_.factor) : before;
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "LinearLR"), options_(options) {
  detail::require(options.start_factor > 0 && options.start_factor <= 1, name(), "start_factor", options.start_factor,
                  "above 0 and at most 1");
  detail::require(options.end_factor >= 0 && options.end_factor <= 1, name(), "end_factor", options.end_factor,
                  "from 0 to 1");
  require_iters(options.total_iters, name());
  note_options(core::Value::map({{"start_factor", options.start_factor},
                                 {"end_factor", options.end_factor},
                                 {"total_iters", options.total_iters}}));
  start();
}

double LinearLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group) * options_.start_factor;
  if (last_epoch() == 0) return before * options_.start_factor;
  if (last_epoch() > options_.total_iters) return before;
  const double slope = options_.end_factor - options_.start_factor;
  const double last =
      static_cast<double>(options_.total_iters) * options_.start_factor + static_cast<double>(last_epoch() - 1) * slope;
  return before * (1.0 + slope / last);
}

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "ExponentialLR"), options_(options) {
  require_gamma(options.gamma, name());
  note_options(core::Value::map({{"gamma", options.gamma}}));
  start();
}

double ExponentialLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group);
  return moment == Moment::kStart ? before : before * options_.gamma;
}

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "PolynomialLR"), options_(options) {
  require_iters(options.total_iters, name());
  detail::require(std::isfinite(options.power) && options.power >= 0, name(), "power", options.power, "0 or above");
  note_options(core::Value::map({{"total_iters", options.total_iters}, {"power", options.power}}));
  start();
}

double PolynomialLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group);
  if (moment == Moment::kStart || last_epoch() > options_.total_iters) return before;
  const auto total = static_cast<double>(options_.total_iters);
  const auto now = static_cast<double>(last_epoch());
  return before * std::pow((1.0 - now / total) / (1.0 - (now - 1.0) / total), options_.power);
}

}  // namespace hasten::optim
