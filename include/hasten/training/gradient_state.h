// GradientState: the state of one Accelerator's training loop, which its loaders, optimizers and schedulers share.
//
// It is composed of the loader stack, the prepared optimizers and the open joined loop. Its own part is whether
// gradients are exchanged at this step. Accelerate keeps this in a process-wide singleton. The loader room writes the
// position, `accumulate` writes sync_gradients, prepared optimizers write whether their last step was skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hasten/training/joinable.h"
#include "hasten/training/loader_stack.h"
#include "hasten/training/prepared_optimizers.h"

namespace hasten::training {

class GradientState {
 public:
  LoaderStack& loaders() noexcept { return loaders_; }
  const LoaderStack& loaders() const noexcept { return loaders_; }
  PreparedOptimizers& optimizers() noexcept { return optimizers_; }
  const PreparedOptimizers& optimizers() const noexcept { return optimizers_; }

  /// Returns true if this step's backward exchanges gradients and the optimizer steps. The last `accumulate` decided
  /// it, also behind a loop that was left inside a window. True before the first one.
  bool sync_gradients() const noexcept { return sync_gradients_; }
  void set_sync_gradients(bool sync) noexcept { sync_gradients_ = sync; }

  /// Returns true if some backward has had a weight. From then on an optimizer none of whose parameters has a gradient
  /// skips its step: the weights of all ranks were zero.
  bool weighted() const noexcept { return weighted_; }
  void set_weighted() noexcept { weighted_ = true; }

  /// Returns true if a joined loop has left its last window open. Its backwards had the weight 1. Those that end the
  /// window behind the loop have it as well, unless they have one of their own.
  bool has_joined_window() const noexcept { return joined_window_; }
  void set_joined_window(bool open) noexcept { joined_window_ = open; }

  /// Call it before a collective that needs all ranks, with its name for messages. If some ranks may have run out of
  /// data (join_uneven_inputs), it notifies them. Otherwise it does nothing.
  /// Collective: there. Blocks: there. Throws: UsageError on all ranks if some have run out.
  void require_all(const std::string& call) const {
    if (join_) join_->require_all(call);
  }
  /// The joined loop that is open; it must stay valid. Null: none.
  void set_join(JoinScope* join) noexcept { join_ = join; }

  // ---- Of the components, under Accelerate's names.

  bool in_dataloader() const noexcept { return !loaders_.empty(); }
  LoaderPosition position() const noexcept { return loaders_.position(); }
  bool end_of_dataloader() const noexcept { return position().end_of_dataloader; }
  int64_t remainder() const noexcept { return position().remainder; }
  bool optimizer_step_was_skipped() const noexcept { return optimizers_.any_step_was_skipped(); }
  bool is_prepared(const torch::optim::Optimizer& optimizer) const { return optimizers_.contains(optimizer); }
  bool step_was_skipped(const torch::optim::Optimizer& optimizer) const {
    return optimizers_.step_was_skipped(optimizer);
  }
  [[nodiscard]] std::shared_ptr<const void> set_prepared(const torch::optim::Optimizer& optimizer) {
    return optimizers_.add(optimizer);
  }
  void set_step_was_skipped(const torch::optim::Optimizer& optimizer, bool skipped) {
    optimizers_.note_step(optimizer, skipped);
  }
  StepPolicies& step_policies() noexcept { return optimizers_.policies(); }
  const StepPolicies& step_policies() const noexcept { return optimizers_.policies(); }
  void enter(const LoaderPosition* loader) { loaders_.enter(loader); }
  void leave(const LoaderPosition* loader) noexcept { loaders_.leave(loader); }

 private:
  LoaderStack loaders_;
  PreparedOptimizers optimizers_;
  JoinScope* join_ = nullptr;
  bool sync_gradients_ = true;
  bool weighted_ = false;
  bool joined_window_ = false;
};

}  // namespace hasten::training
