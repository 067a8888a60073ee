// Rates that fall on a plateau; see plateau.h.
#include "hasten/optim/schedulers/plateau.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/parameter_groups.h"
#include "optim/schedulers/read_state.h"

namespace hasten::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr const char* kName = "ReduceLROnPlateau";

// Infinite values are texts, as JSON has none.
core::Value written(double value) {
  return std::isfinite(value) ? core::Value(value) : core::Value(value > 0 ? "inf" : "-inf");
}

double read(const core::Value& value) {
  if (!value.is_string()) return value.as_double();
  return value.as_string() == "inf" ? kInfinity : -kInfinity;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, const Options& options)
    : optimizer_(&optimizer),
      options_(options),
      rates_(detail::learning_rates(optimizer)),
      best_(options.mode == PlateauMode::kMin ? kInfinity : -kInfinity) {
  detail::require(options.factor > 0 && options.factor < 1, kName, "factor", options.factor, "above 0 and below 1");
  detail::require(options.patience >= 0, kName, "patience", options.patience, "0 or above");
  detail::require(options.cooldown >= 0, kName, "cooldown", options.cooldown, "0 or above");
  detail::require(options.threshold >= 0, kName, "threshold", options.threshold, "0 or above");
  detail::require(options.eps >= 0, kName, "eps", options.eps, "0 or above");
  min_lrs_ = options.min_lr.expand(rates_.size(), kName, "min_lr");
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::kRel;
  if (options_.mode == PlateauMode::kMin) {
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceLROnPlateau::reduce() {
  for (size_t group = 0; group < rates_.size(); ++group) {
    const double lower = std::max(rates_[group] * options_.factor, min_lrs_[group]);
    if (rates_[group] - lower > options_.eps) detail::set_learning_rate(*optimizer_, group, lower);
  }
}

void ReduceLROnPlateau::step(double metric) {
  auto rates = detail::learning_rates(*optimizer_);
  if (rates.size() != rates_.size()) {
    throw UsageError(Origin{"optim"}, kName, ": the optimizer has ", rates.size(),
                     " parameter groups, at construction ", rates_.size(),
                     ". Add groups before the scheduler is made.");
  }
  rates_ = std::move(rates);
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (in_cooldown()) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    reduce();
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
  rates_ = detail::learning_rates(*optimizer_);
}

core::Value ReduceLROnPlateau::state() const {
  const auto options =
      core::Value::map({{"mode", options_.mode == PlateauMode::kMin ? "min" : "max"},
                        {"factor", options_.factor},
                        {"patience", options_.patience},
                        {"threshold", options_.threshold},
                        {"threshold_mode", options_.threshold_mode == ThresholdMode::kRel ? "rel" : "abs"},
                        {"cooldown", options_.cooldown},
                        {"min_lrs", min_lrs_},
                        {"eps", options_.eps}});
  return core::Value::map({{"scheduler", kName},
                           {"last_epoch", last_epoch_},
                           {"last_lr", rates_},
                           {"best", written(best_)},
                           {"num_bad_epochs", num_bad_epochs_},
                           {"cooldown_counter", cooldown_counter_},
                           {"options", options}});
}

void ReduceLROnPlateau::load_state(const core::Value& state) {
  std::string of;
  detail::read_state(kName, [&] { of = state.at("scheduler").as_string(); });
  detail::require(of == kName, kName, "the state's scheduler", of, kName);
  std::vector<double> rates;
  detail::read_state(kName, [&] { rates = detail::doubles_of(state.at("last_lr")); });
  detail::require(rates.size() == rates_.size(), kName, "the state's number of parameter groups", rates.size(),
                  text(rates_.size()));
  detail::read_state(kName, [&] {
    const double best = read(state.at("best"));
    const int64_t last_epoch = state.at("last_epoch").as_int(), num_bad_epochs = state.at("num_bad_epochs").as_int();
    cooldown_counter_ = state.at("cooldown_counter").as_int();
    best_ = best;
    last_epoch_ = last_epoch;
    num_bad_epochs_ = num_bad_epochs;
  });
  rates_ = std::move(rates);
  for (size_t group = 0; group < rates_.size(); ++group) {
    detail::set_learning_rate(*optimizer_, group, rates_[group]);
  }
}

}  // namespace hasten::optim
