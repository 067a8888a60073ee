// The one cycle of the rate; see one_cycle.h.
#include "hasten/optim/schedulers/one_cycle.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/parameter_groups.h"

namespace hasten::optim {
namespace {

int64_t length_of(const OneCycleLROptions& options, std::string_view name) {
  if (options.total_steps) {
    detail::require(*options.total_steps >= 1, name, "total_steps", *options.total_steps, "at least 1");
    return *options.total_steps;
  }
  if (!options.epochs || !options.steps_per_epoch) {
    throw UsageError(Origin{"optim"}, name,
                     ": no length; expected total_steps, or epochs and steps_per_epoch. Give one of them.");
  }
  detail::require(*options.epochs >= 1, name, "epochs", *options.epochs, "at least 1");
  detail::require(*options.steps_per_epoch >= 1, name, "steps_per_epoch", *options.steps_per_epoch, "at least 1");
  return *options.epochs * *options.steps_per_epoch;
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "OneCycleLR"), options_(options), total_steps_(length_of(options, name())) {
  detail::require(options.pct_start >= 0 && options.pct_start <= 1, name(), "pct_start", options.pct_start,
                  "from 0 to 1");
  detail::require(std::isfinite(options.div_factor) && options.div_factor > 0, name(), "div_factor", options.div_factor,
                  "above 0");
  detail::require(std::isfinite(options.final_div_factor) && options.final_div_factor > 0, name(), "final_div_factor",
                  options.final_div_factor, "above 0");
  max_lrs_ = options.max_lr.expand(num_groups(), name(), "max_lr");
  std::vector<double> initial = max_lrs_;
  for (double& rate : initial) rate /= options.div_factor;
  set_base_lrs(std::move(initial));
  if (options.cycle_momentum) {
    detail::require_momentum(optimizer, name());
    base_momenta_ = options.base_momentum.expand(num_groups(), name(), "base_momentum");
    max_momenta_ = options.max_momentum.expand(num_groups(), name(), "max_momentum");
  }
  note_options(core::Value::map(
      {{"max_lrs", max_lrs_}, {"total_steps", total_steps_}, {"cycle_momentum", options.cycle_momentum}}));
  start();
}

void OneCycleLR::advance() {
  if (finished()) {
    throw UsageError(Origin{"optim"}, name(), ": step ", last_epoch() + 1, ", but total_steps = ", total_steps_,
                     ". Give it the number of steps that the loop takes.");
  }
  Scheduler::advance();
}

std::vector<OneCycleLR::Phase> OneCycleLR::phases(size_t group) const {
  const auto total = static_cast<double>(total_steps_);
  const double initial = base_lr(group), max = max_lrs_[group], min = initial / options_.final_div_factor;
  const double high = options_.cycle_momentum ? max_momenta_[group] : 0.0;
  const double low = options_.cycle_momentum ? base_momenta_[group] : 0.0;
  const double up = options_.pct_start * total - 1.0;
  if (!options_.three_phase) return {{up, initial, max, high, low}, {total - 1.0, max, min, low, high}};
  return {{up, initial, max, high, low},
          {2.0 * options_.pct_start * total - 2.0, max, initial, low, high},
          {total - 1.0, initial, min, high, high}};
}

double OneCycleLR::anneal(size_t group, double Phase::*from, double Phase::*to) const {
  // A step past the end leaves the last value.
  const auto step = static_cast<double>(std::min(last_epoch(), total_steps_ - 1));
  const auto all = phases(group);
  double begin = 0.0;
  size_t i = 0;
  for (; i + 1 < all.size() && step > all[i].end_step; ++i) begin = all[i].end_step;
  const Phase& phase = all[i];
  // A phase of no length is at its end; PyTorch divides by zero there.
  const double part = phase.end_step == begin ? 1.0 : (step - begin) / (phase.end_step - begin);
  const double start = phase.*from, end = phase.*to;
  if (options_.anneal_strategy == AnnealStrategy::kLinear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1.0);
}

double OneCycleLR::rate(size_t group, double, Moment) const {
  return anneal(group, &Phase::from_lr, &Phase::to_lr);
}

std::optional<double> OneCycleLR::momentum(size_t group) const {
  if (!options_.cycle_momentum) return {};
  return anneal(group, &Phase::from_momentum, &Phase::to_momentum);
}

}  // namespace hasten::optim
