// PowerSGD: gradients travel as products of two thin matrices. Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019;
// the hook of torch's DDP.
//
// A gradient of [n, m] costs r (n + m) numbers on the wire instead of n m, in two messages a bucket. The remainder of
// the product stays on the rank and is added to its next gradient (error feedback). Each step's power iteration begins
// where the last one ended (warm start).
#pragma once

#include <cstdint>

#include "hasten/parallel/compress/comm_hook.h"

namespace hasten::parallel {

/// torch's names and values, but for the start: its 1000 is meant for runs of many thousand steps as well.
struct PowerSgdOptions {
  /// r: columns of the thin matrices. More is closer to the exact mean and sends more.
  int64_t matrix_approximation_rank = 1;
  /// Exchanges in full before compression begins, while gradients change most.
  int64_t start_iteration = 1000;
  /// A gradient is compressed only where that makes it more than this many times smaller.
  double min_compression_rate = 2.0;
  bool use_error_feedback = true;
  bool warm_start = true;
  /// Seed of the first matrices; the same on all ranks.
  uint64_t seed = 0;
};

/// Gradients of one dimension, those of other dtypes than float32 and float64, and those that would not shrink travel
/// as they are. For each compressed parameter it holds a copy of its size (error feedback) and one thin matrix. Copies
/// of the hook share them. Throws: UsageError for numbers out of range.
CommHook power_sgd(const PowerSgdOptions& options = {});

}  // namespace hasten::parallel
