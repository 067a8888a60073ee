// Rates along a cosine; see cosine.h.
#include "hasten/optim/schedulers/cosine.h"

#include <cmath>
#include <numbers>

#include "optim/parameter_groups.h"

namespace hasten::optim {
namespace {

constexpr double kPi = std::numbers::pi;

void require_eta_min(double eta_min, std::string_view name) {
  detail::require(std::isfinite(eta_min) && eta_min >= 0, name, "eta_min", eta_min, "0 or above");
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "CosineAnnealingLR"), options_(options) {
  detail::require(options.T_max >= 1, name(), "T_max", options.T_max, "at least 1");
  require_eta_min(options.eta_min, name());
  note_options(core::Value::map({{"T_max", options.T_max}, {"eta_min", options.eta_min}}));
  start();
}

double CosineAnnealingLR::rate(size_t group, double before, Moment moment) const {
  if (moment == Moment::kRestart) return base_lr(group);
  if (moment == Moment::kStart) return before;
  const auto total = static_cast<double>(options_.T_max);
  const auto now = static_cast<double>(last_epoch());
  // At the bottom of the cosine the recursion would divide by zero. PyTorch adds the first step up.
  if ((last_epoch() - 1 - options_.T_max) % (2 * options_.T_max) == 0) {
    return before + (base_lr(group) - options_.eta_min) * (1.0 - std::cos(kPi / total)) / 2.0;
  }
  return (1.0 + std::cos(kPi * now / total)) / (1.0 + std::cos(kPi * (now - 1.0) / total)) *
             (before - options_.eta_min) +
         options_.eta_min;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "CosineAnnealingWarmRestarts"), options_(options) {
  detail::require(options.T_0 >= 1, name(), "T_0", options.T_0, "at least 1");
  detail::require(options.T_mult >= 1, name(), "T_mult", options.T_mult, "at least 1");
  require_eta_min(options.eta_min, name());
  note_options(core::Value::map({{"T_0", options.T_0}, {"T_mult", options.T_mult}, {"eta_min", options.eta_min}}));
  start();
}

double CosineAnnealingWarmRestarts::rate(size_t group, double, Moment) const {
  int64_t current = last_epoch(), length = options_.T_0;
  if (options_.T_mult == 1) {
    current %= length;
  } else {
    while (current >= length) {
      current -= length;
      length *= options_.T_mult;
    }
  }
  const double angle = kPi * static_cast<double>(current) / static_cast<double>(length);
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1.0 + std::cos(angle)) / 2.0;
}

}  // namespace hasten::optim
