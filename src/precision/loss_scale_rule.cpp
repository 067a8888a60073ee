// See loss_scale_rule.h.
#include "hasten/precision/loss_scale_rule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::precision {
namespace {

// As a float32, within the limits; the old one if that is no usable scale.
double moved(double old, double factor, const LossScaleRule& rule) noexcept {
  double scale = static_cast<double>(static_cast<float>(old * factor));
  if (rule.min_scale && factor < 1) scale = std::max(scale, *rule.min_scale);
  if (rule.max_scale && factor > 1) scale = std::min(scale, *rule.max_scale);
  return std::isfinite(scale) && scale > 0 ? scale : old;
}

// torch, Apex and fastai count good steps; fastai's count survives an overflow.
void count_steps(LossScaleState& state, bool found_inf, const LossScaleRule& rule) noexcept {
  if (found_inf) {
    if (rule.kind != LossScaleKind::kFastai) state.tracker = 0;
    state.scale = moved(state.scale, rule.backoff_factor, rule);
  } else if (++state.tracker == rule.growth_interval) {
    state.tracker = 0;
    state.scale = moved(state.scale, rule.growth_factor, rule);
  }
}

// FP16_Optimizer and DeepSpeed grow at every interval since the last overflow.
void count_from_overflow(LossScaleState& state, bool found_inf, const LossScaleRule& rule) noexcept {
  if (found_inf) {
    if (state.hysteresis <= 1) {
      state.scale = moved(state.scale, rule.backoff_factor, rule);
    } else {
      --state.hysteresis;
    }
    state.last_overflow = state.iteration;
  } else {
    if (rule.consecutive_hysteresis) state.hysteresis = rule.hysteresis;
    if ((state.iteration - state.last_overflow) % rule.growth_interval == 0) {
      if (!rule.consecutive_hysteresis) state.hysteresis = rule.hysteresis;
      state.scale = moved(state.scale, rule.growth_factor, rule);
    }
  }
  ++state.iteration;
}

}  // namespace

LossScaleRule LossScaleRule::of(LossScaleKind kind) noexcept {
  LossScaleRule rule{.kind = kind};
  switch (kind) {
    case LossScaleKind::kTorch:
      break;
    case LossScaleKind::kApex:
      rule.max_scale = 16777216.0;
      break;
    case LossScaleKind::kFp16Optimizer:
      rule.init_scale = 4294967296.0;
      rule.growth_interval = 1000;
      rule.min_scale = 1.0;
      break;
    case LossScaleKind::kFastai:
      rule.init_scale = 16777216.0;
      rule.growth_interval = 500;
      break;
    case LossScaleKind::kDeepSpeed:
      rule.growth_interval = 1000;
      rule.min_scale = 1.0;
      rule.hysteresis = 2;
      break;
  }
  return rule;
}

LossScaleState initial_state(const LossScaleRule& rule) {
  std::string wrong;
  const auto expect = [&wrong](bool good, const char* name, double value, const char* expected) {
    if (!good) wrong += text(wrong.empty() ? "" : "; ", name, " = ", value, ", expected ", expected);
  };
  const auto init_scale = static_cast<float>(rule.init_scale);  // the scale is a float32: 1e-50 is 0, and 1e39 infinite
  expect(std::isfinite(init_scale) && init_scale > 0, "init_scale", rule.init_scale,
         "a finite number above 0 that float32 can hold");
  expect(std::isfinite(rule.growth_factor) && rule.growth_factor > 1, "growth_factor", rule.growth_factor, "above 1");
  expect(rule.backoff_factor > 0 && rule.backoff_factor < 1, "backoff_factor", rule.backoff_factor, "between 0 and 1");
  expect(rule.growth_interval >= 1, "growth_interval", static_cast<double>(rule.growth_interval), "at least 1");
  expect(rule.hysteresis >= 1, "hysteresis", static_cast<double>(rule.hysteresis), "at least 1");
  expect(!rule.min_scale || *rule.min_scale >= 0, "min_scale", rule.min_scale.value_or(0), "at least 0");
  expect(!rule.max_scale || *rule.max_scale > rule.min_scale.value_or(0), "max_scale", rule.max_scale.value_or(1),
         "above min_scale");
  if (!wrong.empty()) throw UsageError(Origin{"precision"}, "loss scale: ", wrong, '.');
  double scale = static_cast<double>(static_cast<float>(rule.init_scale));
  if (rule.dynamic && rule.max_scale) scale = std::min(scale, *rule.max_scale);
  return {.scale = scale, .hysteresis = rule.hysteresis};
}

LossScaleState next(const LossScaleState& state, bool found_inf, const LossScaleRule& rule) noexcept {
  LossScaleState result = state;
  if (!rule.dynamic) {
    ++result.tracker;
    ++result.iteration;
  } else if (rule.kind == LossScaleKind::kFp16Optimizer || rule.kind == LossScaleKind::kDeepSpeed) {
    count_from_overflow(result, found_inf, rule);
  } else {
    count_steps(result, found_inf, rule);
  }
  return result;
}

}  // namespace hasten::precision
