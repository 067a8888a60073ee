// The verdict of a comparison of two runs: what differs first, and why (verify_runs.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hasten::plan {

/// The first thing that differs. Later ones are consequences of earlier ones.
enum class VerifyDifference {
  kNone,
  kNoRecord,  ///< a run made no step that a recorder saw
  kStart,     ///< values before the first step
  kSamples,   ///< which samples a step has
  kBytes,     ///< what the dataset gave for the same samples
  kLosses,
  kRankGradients,  ///< gradients among the ranks of one run
  kGradients,
  kNorm,        ///< the norm before clipping
  kRates,       ///< rates, momenta, loss scale, a step that one side skipped
  kParameters,  ///< behind the step
  kRankParameters,
  kBuffers,
  kNumSteps  ///< a run has made fewer steps
};

struct VerifyVerdict {
  VerifyDifference difference = VerifyDifference::kNone;
  /// The step at which it is, from 0; unset where no step differs by itself.
  std::optional<int64_t> step = {};
  /// "gradients of all 148 parameters are 2.000 times those of one process"
  std::string what = {};
  /// The likely cause and the remedy; empty where no rule fits.
  std::string cause = {};
  /// Steps that were compared, and the largest relative differences in them.
  int64_t num_steps = 0;
  /// Steps behind those that were not compared: rounding, which the optimizer makes larger, would hide a mistake.
  int64_t num_drifted = 0;
  double losses = 0, gradients = 0, parameters = 0;

  bool same() const noexcept { return difference == VerifyDifference::kNone; }
};

}  // namespace hasten::plan
