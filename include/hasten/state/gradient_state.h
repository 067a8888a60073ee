// What the training loop is in the middle of: whether gradients are exchanged at this step, which prepared
// loaders are being iterated, and whether the batch in hand is the last one of the innermost of them.
//
// Accelerate keeps this in a process-wide singleton; here it belongs to one Accelerator, and loaders and
// optimizers prepared by it share it. The loader room writes the position, `accumulate` writes
// sync_gradients, prepared optimizers write whether their last step was skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace hasten::state {

/// The part of a loader that others may ask about while one of its batches is in the caller's hands.
struct LoaderPosition {
  bool end_of_dataloader = false;
  /// Samples of the last global batch that are no padding; -1 if the length is unknown, 0 if the batch is
  /// full.
  int64_t remainder = -1;
};

class GradientState {
 public:
  /// Whether this step's backward exchanges gradients and the optimizer steps; true outside accumulation.
  bool sync_gradients() const noexcept { return sync_gradients_; }
  void set_sync_gradients(bool sync) noexcept { sync_gradients_ = sync; }

  /// Whether this optimizer's steps are taken by a handle that prepare gave.
  bool is_prepared(const torch::optim::Optimizer& optimizer) const { return prepared_.contains(&optimizer); }
  void set_prepared(const torch::optim::Optimizer& optimizer) { prepared_.insert(&optimizer); }

  /// Whether the last step of this optimizer left its parameters as they were, since gradients had
  /// overflowed.
  bool step_was_skipped(const torch::optim::Optimizer& optimizer) const {
    return skipped_.contains(&optimizer);
  }
  /// The same, of any optimizer (Accelerate's optimizer_step_was_skipped).
  bool optimizer_step_was_skipped() const noexcept { return !skipped_.empty(); }
  void set_step_was_skipped(const torch::optim::Optimizer& optimizer, bool skipped);
  /// Steps that prepared optimizers have taken, all together.
  int64_t num_steps() const noexcept { return num_steps_; }

  /// Whether some backward has had a weight. From then on an optimizer none of whose parameters has a
  /// gradient skips its step: the weights of all ranks were zero.
  bool weighted() const noexcept { return weighted_; }
  void set_weighted() noexcept { weighted_ = true; }

  /// Instead of LoaderOptions::even_batches, for loops that begin from now on (join_uneven_inputs).
  std::optional<bool> even_batches() const noexcept { return even_batches_; }
  void set_even_batches(std::optional<bool> even_batches) noexcept { even_batches_ = even_batches; }

  /// A loop over a loader begins; its position must stay valid until leave. Loops nest, the last one counts.
  void enter(const LoaderPosition* loader);
  /// The loop over it ended (by its end, a break or an exception). Nothing if it was not entered.
  void leave(const LoaderPosition* loader) noexcept;

  bool in_dataloader() const noexcept { return !active_.empty(); }
  /// Of the innermost active loader; {false, -1} outside a loop.
  LoaderPosition position() const noexcept { return in_dataloader() ? *active_.back() : LoaderPosition{}; }
  bool end_of_dataloader() const noexcept { return position().end_of_dataloader; }
  int64_t remainder() const noexcept { return position().remainder; }

 private:
  bool sync_gradients_ = true;
  bool weighted_ = false;
  int64_t num_steps_ = 0;
  std::optional<bool> even_batches_;
  std::vector<const LoaderPosition*> active_;
  std::set<const torch::optim::Optimizer*> prepared_, skipped_;
};

}  // namespace hasten::state
