// Rates that go up and down; see cyclic.h.
#include "hasten/optim/schedulers/cyclic.h"

#include <cmath>

#include "optim/parameter_groups.h"

namespace hasten::optim {

CyclicLR::CyclicLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "CyclicLR"), options_(options) {
  const int64_t down = options.step_size_down.value_or(options.step_size_up);
  detail::require(options.step_size_up >= 1, name(), "step_size_up", options.step_size_up, "at least 1");
  detail::require(down >= 1, name(), "step_size_down", down, "at least 1");
  detail::require(std::isfinite(options.gamma) && options.gamma > 0, name(), "gamma", options.gamma,
                  "a number above 0");
  total_size_ = static_cast<double>(options.step_size_up + down);
  step_ratio_ = static_cast<double>(options.step_size_up) / total_size_;
  max_lrs_ = options.max_lr.expand(num_groups(), name(), "max_lr");
  set_base_lrs(options.base_lr.expand(num_groups(), name(), "base_lr"));
  if (options.cycle_momentum) {
    detail::require_momentum(optimizer, name());
    base_momenta_ = options.base_momentum.expand(num_groups(), name(), "base_momentum");
    max_momenta_ = options.max_momentum.expand(num_groups(), name(), "max_momentum");
  }
  note_options(core::Value::map({{"max_lrs", max_lrs_},
                                 {"total_size", total_size_},
                                 {"step_ratio", step_ratio_},
                                 {"cycle_momentum", options.cycle_momentum}}));
  start();
}

double CyclicLR::height() const {
  const auto step = static_cast<double>(last_epoch());
  const double cycle = std::floor(1.0 + step / total_size_);
  const double x = 1.0 + step / total_size_ - cycle;
  const double triangle = x <= step_ratio_ ? x / step_ratio_ : (x - 1.0) / (step_ratio_ - 1.0);
  if (options_.scale_fn) {
    return triangle * options_.scale_fn(options_.scale_mode == ScaleMode::kCycle ? cycle : step);
  }
  switch (options_.mode) {
    case CyclicMode::kTriangular:
      return triangle;
    case CyclicMode::kTriangular2:
      return triangle * std::pow(2.0, 1.0 - cycle);
    case CyclicMode::kExpRange:
      return triangle * std::pow(options_.gamma, step);
  }
  return triangle;
}

double CyclicLR::rate(size_t group, double, Moment) const {
  return base_lr(group) + (max_lrs_[group] - base_lr(group)) * height();
}

std::optional<double> CyclicLR::momentum(size_t group) const {
  if (!options_.cycle_momentum) return {};
  return max_momenta_[group] - (max_momenta_[group] - base_momenta_[group]) * height();
}

}  // namespace hasten::optim
