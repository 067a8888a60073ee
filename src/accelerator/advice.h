// Advice: calls that a training on several ranks mostly has, and that a program has left out. Each is said once.
#pragma once

#include <cstdint>

#include "hasten/core/log.h"

namespace hasten {

class Advice {
 public:
  struct Facts {
    int world_size = 1;
    /// Batches a step (gradient_accumulation_steps).
    int64_t num_steps = 1;
    /// Calls of step() and zero_grad() of prepared optimizers so far.
    int64_t optimizer_calls = 0;
  };

  void note_model() noexcept { has_model_ = true; }
  void note_loader() noexcept { has_loader_ = true; }
  void note_accumulate() noexcept { accumulates_ = true; }
  /// Says that no loader was prepared, or that accumulate() is not called, if so.
  void before_backward(const Facts& facts, const Logger& log);
  /// Says that nothing was prepared, if so.
  void at_end(const Facts& facts, const Logger& log) const;

 private:
  bool has_model_ = false, has_loader_ = false, accumulates_ = false, said_loader_ = false, said_accumulate_ = false;
  int64_t backwards_ = 0, calls_before_ = 0;
};

}  // namespace hasten
