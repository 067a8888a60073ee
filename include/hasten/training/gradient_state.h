// What the training loop is in the middle of: whether gradients are exchanged at this step, which prepared
// loaders are being iterated, and whether the batch in hand is the last one of the innermost of them.
//
// Accelerate keeps this in a process-wide singleton; here it belongs to one Accelerator, and loaders and
// optimizers prepared by it share it. The loader room writes the position, `accumulate` writes
// sync_gradients, prepared optimizers write whether their last step was skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/training/step_policy.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::training {

/// The part of a loader that others may ask about while one of its batches is in the caller's hands.
struct LoaderPosition {
  bool end_of_dataloader = false;
  /// Samples of the last global batch that are no padding; -1 if the length is unknown, 0 if the batch is
  /// full.
  int64_t remainder = -1;
  /// This rank's samples of the batch in hand that are no padding; -1 where the ranks hold equally many rows,
  /// so that the remainder tells.
  int64_t num_local_valid = -1;
};

class GradientState {
 public:
  /// Whether this step's backward exchanges gradients and the optimizer steps: as `accumulate` said last,
  /// also behind a loop that was left inside a window; true before the first one.
  bool sync_gradients() const noexcept { return sync_gradients_; }
  void set_sync_gradients(bool sync) noexcept { sync_gradients_ = sync; }

  /// Whether this optimizer's steps are taken by a handle that prepare gave, and that still exists.
  bool is_prepared(const torch::optim::Optimizer& optimizer) const { return find(optimizer) != nullptr; }
  /// Counts until what it gives, which the handles keep, is gone.
  [[nodiscard]] std::shared_ptr<const void> set_prepared(const torch::optim::Optimizer& optimizer);

  /// Whether the last step of this optimizer left its parameters as they were, since gradients had
  /// overflowed.
  bool step_was_skipped(const torch::optim::Optimizer& optimizer) const {
    const Prepared* known = find(optimizer);
    return known && known->skipped;
  }
  /// The same, of any prepared optimizer (Accelerate's optimizer_step_was_skipped).
  bool optimizer_step_was_skipped() const noexcept;
  void set_step_was_skipped(const torch::optim::Optimizer& optimizer, bool skipped);
  /// How often prepared optimizers have stepped or forgotten gradients, all together.
  int64_t num_optimizer_calls() const noexcept { return num_optimizer_calls_; }
  void count_zero_grad() noexcept { ++num_optimizer_calls_; }

  /// What happens around the steps of prepared optimizers.
  StepPolicies& step_policies() noexcept { return step_policies_; }
  const StepPolicies& step_policies() const noexcept { return step_policies_; }

  /// Whether some backward has had a weight. From then on an optimizer none of whose parameters has a
  /// gradient skips its step: the weights of all ranks were zero.
  bool weighted() const noexcept { return weighted_; }
  void set_weighted() noexcept { weighted_ = true; }

  /// Instead of LoaderOptions::even_batches, for loops that begin from now on (join_uneven_inputs).
  std::optional<bool> even_batches() const noexcept { return even_batches_; }
  void set_even_batches(std::optional<bool> even_batches) noexcept { even_batches_ = even_batches; }

  /// To be called before a collective that needs all ranks, with its name for messages: where some ranks may
  /// have run out of data (join_uneven_inputs) it tells them, and otherwise it does nothing.
  /// Collective: there. Blocks: there. Throws: UsageError on all ranks if some have run out.
  void meet(const std::string& call) const {
    if (meet_) meet_(call);
  }
  void set_meet(std::function<void(const std::string&)> meet) { meet_ = std::move(meet); }

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
  /// Not the address alone: another optimizer may be made where a freed one lay.
  struct Prepared {
    const torch::optim::Optimizer* optimizer;
    std::weak_ptr<const void> handles;
    bool skipped = false;
  };
  const Prepared* find(const torch::optim::Optimizer& optimizer) const noexcept;

  bool sync_gradients_ = true;
  bool weighted_ = false;
  int64_t num_optimizer_calls_ = 0;
  std::optional<bool> even_batches_;
  std::vector<const LoaderPosition*> active_;
  std::function<void(const std::string&)> meet_;
  std::vector<Prepared> prepared_;
  StepPolicies step_policies_;
};

}  // namespace hasten::training
