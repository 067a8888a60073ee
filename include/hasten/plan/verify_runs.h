// Compares two runs of a program, step by step and in causal order, and names the first thing that differs with its
// likely cause (docs/verify.md). Pure; the command `hasten verify` makes the runs.
#pragma once

#include <optional>
#include <string>

#include "hasten/plan/verify_record.h"
#include "hasten/plan/verify_verdict.h"

namespace hasten::plan {

struct VerifyRunsOptions {
  /// Relative to the larger norm, times the root of the step's number. Unset: 2e-5; 2e-2 in fp16 and bf16; 0.1 for
  /// runs in two precisions.
  std::optional<double> tolerance = {};
};

/// `one` is the run that is taken for right.
VerifyVerdict compare_runs(const VerifyRun& one, const VerifyRun& many, const VerifyRunsOptions& options = {});

/// Returns the verdict on a run that failed because a rank had left its loop, while others began a further step.
std::optional<VerifyVerdict> find_rank_that_left(const VerifyRun& run);

/// Returns one or two lines, ended: what `hasten verify` prints.
std::string verify_text(const VerifyVerdict& verdict, const VerifyRun& one, const VerifyRun& many);

}  // namespace hasten::plan
