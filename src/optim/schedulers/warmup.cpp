// The rise at the beginning; see warmup.h.
#include "hasten/optim/schedulers/warmup.h"

#include <cmath>

#include "optim/parameter_groups.h"

namespace hasten::optim {

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "WarmupLR"), options_(options) {
  detail::require(options.total_iters >= 0, name(), "total_iters", options.total_iters, "0 or above");
  detail::require(std::isfinite(options.start_factor) && options.start_factor >= 0, name(), "start_factor",
                  options.start_factor, "0 or above");
  detail::require(std::isfinite(options.end_factor) && options.end_factor > 0, name(), "end_factor", options.end_factor,
                  "above 0");
  if (options.after) {
    set_rates(warm_rates());  // its base rates
    after_ = options.after(optimizer);
  }
  note_options(core::Value::map({{"total_iters", options.total_iters},
                                 {"start_factor", options.start_factor},
                                 {"end_factor", options.end_factor}}));
  start();
}

std::vector<double> WarmupLR::warm_rates() const {
  std::vector<double> rates = base_lrs();
  for (double& rate : rates) rate *= options_.end_factor;
  return rates;
}

void WarmupLR::start() {
  Scheduler::start();
  if (after_ && options_.total_iters == 0) after_->restart();
  note_rates();
}

void WarmupLR::restart() {
  start();
}

bool WarmupLR::finished() const noexcept {
  return after_ && last_epoch() >= options_.total_iters && after_->finished();
}

void WarmupLR::advance() {
  const int64_t epoch = last_epoch() + 1;
  if (!after_ || epoch < options_.total_iters) {
    move_to(epoch, Moment::kStep);
    return;
  }
  if (epoch == options_.total_iters) {
    after_->restart();
  } else {
    after_->step();
  }
  set_last_epoch(epoch);
}

double WarmupLR::rate(size_t group, double, Moment) const {
  const double done = last_epoch() < options_.total_iters
                          ? static_cast<double>(last_epoch()) / static_cast<double>(options_.total_iters)
                          : 1.0;
  return base_lr(group) * (options_.start_factor + (options_.end_factor - options_.start_factor) * done);
}

void WarmupLR::save(core::Value& state) const {
  if (after_) state["after"] = after_->state();
}

void WarmupLR::load(const core::Value& state) {
  detail::require(state.contains("after") == (after_ != nullptr), name(), "the state's after",
                  state.contains("after") ? "a scheduler" : "none", after_ ? "a scheduler" : "none");
  if (after_) after_->load_state(state.at("after"));
}

WarmupLROptions gradual_warmup(const GradualWarmupOptions& options) {
  return {.total_iters = options.total_iters,
          .start_factor = 1.0,
          .end_factor = options.multiplier,
          .after = options.after};
}

}  // namespace hasten::optim
