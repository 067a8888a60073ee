// See accumulation.h.
#include "hasten/training/accumulation.h"

#include "hasten/core/error.h"

namespace hasten::training {

Accumulation::Accumulation(const AccumulationOptions& options) : options_(options) {
  if (options.num_steps >= 1) return;
  throw UsageError(Origin{"accelerator"}, "gradient_accumulation_steps is ", options.num_steps,
                   "; expected a number of batches, at least 1.");
}

void Accumulation::next(GradientState& gradients) {
  gradients.optimizers().begin_batch();
  if (options_.sync_with_dataloader && gradients.end_of_dataloader()) {
    step_ = 0;
    gradients.set_sync_gradients(true);
  } else {
    ++step_;
    gradients.set_sync_gradients(step_ % options_.num_steps == 0);
  }
}

}  // namespace hasten::training
