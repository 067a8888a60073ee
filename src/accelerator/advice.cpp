// See advice.h.
#include "accelerator/advice.h"

#include <utility>

#include "hasten/core/text.h"

namespace hasten {

void Advice::before_backward(const Facts& facts, const Logger& log) {
  ++backwards_;
  if (facts.world_size > 1 && !has_loader_ && !std::exchange(said_loader_, true)) {
    log.warning(text("no loader was prepared, so each of the ", facts.world_size,
                     " ranks trains on whatever its program reads. Prepare the loader, which gives each rank its part, "
                     "or give each rank its part of the data (data::DistributedSampler)."));
  }
  // A program that makes its own windows does not step between the first two backwards.
  if (backwards_ == 1) calls_before_ = facts.optimizer_calls;
  const bool steps_each = backwards_ == 2 && facts.optimizer_calls != calls_before_;
  if (facts.num_steps > 1 && steps_each && !accumulates_ && !std::exchange(said_accumulate_, true)) {
    log.warning(text("gradient_accumulation_steps is ", facts.num_steps,
                     ", and accumulate() is not called: every step() ", "steps, with gradients of losses divided by ",
                     facts.num_steps, ". Open `const auto scope = accelerator.accumulate(model);` for each batch."));
  }
}

void Advice::at_end(const Facts& facts, const Logger& log) const {
  if (facts.world_size == 1 || has_model_ || has_loader_) return;
  log.warning(text("nothing was prepared by ", facts.world_size,
                   " ranks: a training would have been one of each rank for itself. Pass model, optimizer and loader "
                   "through accelerator.prepare."));
}

}  // namespace hasten
