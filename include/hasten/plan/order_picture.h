// The picture of a pipeline order: what each rank runs over time, in characters.
#pragma once

#include <string>
#include <vector>

#include "hasten/plan/orders.h"
#include "hasten/plan/simulate.h"

namespace hasten::plan {

struct PictureOptions {
  double unit_s = 0;       ///< time of a cell; 0: of the shortest action
  size_t most_cells = 40;  ///< a line is cut behind them
};

/// Returns a line a rank. A cell is the kind and the microbatch, and dashes go on with it. A rank's second stage
/// appends the letter b, and so on. Dots are idle time. Throws: UsageError as simulate does.
std::string draw_order(const PipelineOrder& order, const std::vector<StageCost>& costs,
                       const PictureOptions& options = {});

}  // namespace hasten::plan
