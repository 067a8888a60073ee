// When a schedule moves; see prepared_scheduler.h.
#include "hasten/optim/prepared/prepared_scheduler.h"

#include "hasten/core/error.h"

namespace hasten::optim {

int64_t SchedulerPace::steps(const torch::optim::Optimizer& optimizer) {
  if (!options_.step_with_optimizer) return 1;
  if (!gradient_state_->is_prepared(optimizer)) {
    throw UsageError(Origin{"optim"},
                     "a prepared scheduler moves with the steps of its optimizer, but its optimizer was not "
                     "prepared, so nobody counts them. Prepare the optimizer that the scheduler was made on, "
                     "too, and step the handle; or set step_scheduler_with_optimizer to false.");
  }
  if (!gradient_state_->sync_gradients()) {
    if (options_.adjust_scheduler) {
      ++waiting_;
      accumulated_ = true;
    }
    return 0;
  }
  const int64_t batches = 1 + waiting_;
  waiting_ = 0;
  if (gradient_state_->step_was_skipped(optimizer)) return 0;
  return batches * (options_.once_per_process ? options_.world_size : 1);
}

}  // namespace hasten::optim
