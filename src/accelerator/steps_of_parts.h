// Which optimizers can step where a rank has parts of parameters, or some of them.
#pragma once

#include <torch/optim/optimizer.h>

#include "hasten/core/error.h"

namespace hasten {

struct PartedRanks {
  /// Ranks of the axes that cut parameters, and that divide them among stages.
  int tp = 1, pp = 1;
};

/// An optimizer may need norms of parameters of which this rank has parts, or norms of all parameters.
/// Throws: UsageError for these, with the remedy.
void require_steps_of_parts(const torch::optim::Optimizer& optimizer, const PartedRanks& ranks, const Origin& origin);

}  // namespace hasten
