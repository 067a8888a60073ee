// MeasuredStep: where the time of a run's steps goes.
#pragma once

#include <cstdint>

namespace hasten {

/// Means over the steps of this rank behind the first two, which also allocate.
struct MeasuredStep {
  int64_t num_steps = 0;
  double samples = 0;     ///< of a step, of this rank
  double backwards = 0;   ///< of a step
  double data_s = 0;      ///< waiting for batches
  double forward_s = 0;   ///< from the batch to backward, also the program's own code
  double backward_s = 0;  ///< with the exchange of gradients
  double update_s = 0;    ///< from backward to the end of the step
  double total() const noexcept { return data_s + forward_s + backward_s + update_s; }
};

}  // namespace hasten
