// CountedOptimizer: the optimizer whose steps are the steps of a training loop.
#pragma once

#include "hasten/training/prepared_optimizers.h"

namespace hasten::training {

/// The first of several optimizers that steps is counted. If its handles are gone, as behind a fold of a cross
/// validation, the next one takes its place.
class CountedOptimizer {
 public:
  /// `prepared` are those of the loop in which `optimizer` has just stepped. Returns true for the one that counts.
  bool is(const torch::optim::Optimizer& optimizer, const PreparedOptimizers& prepared) {
    if (counted_ == nullptr || !prepared.contains(*counted_)) counted_ = &optimizer;
    return counted_ == &optimizer;
  }

 private:
  const torch::optim::Optimizer* counted_ = nullptr;
};

}  // namespace hasten::training
