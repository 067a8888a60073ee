// LossScaleRule: how a dynamic loss scale moves when a step's gradients overflowed, and when they did not.
//
// A pure function of the state, for the rules of five systems: torch.amp.GradScaler, Apex's LossScaler, Apex's
// FP16_Optimizer, fastai's NonNativeMixedPrecision, DeepSpeed's DynamicLossScaler. They differ in what resets the count
// of good steps and in limits. Scales are float32 values, as in all of them but Apex, whose powers of two are the same.
#pragma once

#include <cstdint>
#include <optional>

namespace hasten::precision {

enum class LossScaleKind { kTorch, kApex, kFp16Optimizer, kFastai, kDeepSpeed };

struct LossScaleRule {
  LossScaleKind kind = LossScaleKind::kTorch;
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  /// Good steps before the scale grows.
  int64_t growth_interval = 2000;
  std::optional<double> min_scale = {};
  std::optional<double> max_scale = {};
  /// DeepSpeed: overflows in a row (or since the scale grew) before the scale shrinks.
  int64_t hysteresis = 1;
  /// DeepSpeed: a good step makes the hysteresis whole again.
  bool consecutive_hysteresis = false;
  /// False: the scale stays, and overflows do not skip steps by themselves.
  bool dynamic = true;

  /// Returns the rule of a system with its defaults. kApex: at most 2^24. kFp16Optimizer: from 2^32, never below 1,
  /// every 1000 steps since the last overflow. kFastai: from 2^24, every 500 good steps. kDeepSpeed: from 2^16 every
  /// 1000 steps, at least 1, hysteresis 2.
  static LossScaleRule of(LossScaleKind kind) noexcept;
};

struct LossScaleState {
  double scale = 65536.0;
  /// Good steps since the scale last moved (torch's _growth_tracker, Apex's unskipped, fastai's count).
  int64_t tracker = 0;
  /// kFp16Optimizer, kDeepSpeed: steps so far, the last one that overflowed, and what is left of the hysteresis.
  int64_t iteration = 0;
  int64_t last_overflow = -1;
  int64_t hysteresis = 1;
};

/// Returns the state before the first step.
/// Throws: UsageError for factors, intervals and scales out of range, all in one message.
LossScaleState initial_state(const LossScaleRule& rule);

/// The state after a step whose gradients were finite, or not (`found_inf`). A scale that would become 0 or infinite
/// stays.
LossScaleState next(const LossScaleState& state, bool found_inf, const LossScaleRule& rule) noexcept;

}  // namespace hasten::precision
