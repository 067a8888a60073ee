// Accumulation: in which batches of a loop gradients are exchanged and the optimizer steps, when several
// batches make one step (Accelerate's GradientAccumulationPlugin).
//
// Only a counter. `Accelerator::accumulate` calls it once a batch, and every prepared object reads the answer from the
// gradient state.
#pragma once

#include <cstdint>

#include "hasten/training/gradient_state.h"

namespace hasten::training {

struct AccumulationOptions {
  /// Batches for one step of the optimizer.
  int64_t num_steps = 1;
  /// The last batch of a loader always ends the window, so that no gradient is left over for the next epoch.
  bool sync_with_dataloader = true;
  /// Gradients are exchanged with every batch although the optimizer waits: more to send, less memory where
  /// they are sharded.
  bool sync_each_batch = false;
};

class Accumulation {
 public:
  /// Throws: UsageError if num_steps < 1.
  explicit Accumulation(const AccumulationOptions& options);

  /// Counts a batch, and records in `gradients` whether its backward ends the window. The batch is the one in the hands
  /// of the innermost loop over a prepared loader.
  /// Collective: no, but all ranks must count alike.
  void next(GradientState& gradients);

  /// Batches counted since the last loader's end (since the beginning without sync_with_dataloader).
  int64_t step() const noexcept { return step_; }
  void set_step(int64_t step) noexcept { step_ = step; }
  const AccumulationOptions& options() const noexcept { return options_; }

 private:
  AccumulationOptions options_;
  int64_t step_ = 0;
};

}  // namespace hasten::training
