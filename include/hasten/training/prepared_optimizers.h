// PreparedOptimizers: which optimizers step through a handle that prepare gave, and what their last steps did.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hasten/training/step_policy.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::training {

class PreparedOptimizers {
 public:
  /// Returns true if this optimizer's steps are taken by a handle that prepare gave, and that still exists.
  bool contains(const torch::optim::Optimizer& optimizer) const { return find(optimizer) != nullptr; }
  /// Counts until what it returns, which the handles keep, is gone.
  [[nodiscard]] std::shared_ptr<const void> add(const torch::optim::Optimizer& optimizer);

  /// Returns true if the last step of this optimizer left its parameters as they were, since gradients had overflowed.
  bool step_was_skipped(const torch::optim::Optimizer& optimizer) const {
    const Entry* known = find(optimizer);
    return known && known->skipped;
  }
  /// The same, of any of them (Accelerate's optimizer_step_was_skipped).
  bool any_step_was_skipped() const noexcept;
  void note_step(const torch::optim::Optimizer& optimizer, bool skipped);
  /// Returns how often they have stepped or dropped gradients, all together.
  int64_t num_calls() const noexcept { return num_calls_; }

  /// A batch of a window begins (accumulate): carries out what zero_grad has put off.
  void begin_batch();
  /// A backward of this batch; `held`: its gradients wait for the window's end.
  void note_backward(bool held);
  /// Calls `zero` when gradients may be forgotten. While accumulated gradients wait for this optimizer's step, it never
  /// does so inside the window. In the window's last batch (`ends_window`) it does so at once if that batch has had its
  /// backward. Otherwise it does so when the next batch begins: before its backward the call stands at the head of the
  /// loop's body.
  /// Throws: the exceptions of `zero`.
  void zero_grad(const torch::optim::Optimizer& optimizer, bool ends_window, std::function<void()> zero);

  /// Policies around their steps.
  StepPolicies& policies() noexcept { return policies_; }
  const StepPolicies& policies() const noexcept { return policies_; }

 private:
  /// Not the address alone: another optimizer may be made where a freed one lay.
  struct Entry {
    const torch::optim::Optimizer* optimizer;
    std::weak_ptr<const void> handles;
    bool skipped = false;
    /// Backwards whose gradients its steps have taken in, or that were given up.
    int64_t num_settled = 0;
    /// A zero_grad that was put off.
    std::function<void()> put_off = nullptr;
  };
  Entry* find(const torch::optim::Optimizer& optimizer) noexcept;
  const Entry* find(const torch::optim::Optimizer& optimizer) const noexcept;

  std::vector<Entry> entries_;
  int64_t num_calls_ = 0;
  int64_t num_held_backwards_ = 0;
  bool has_backward_ = false;
  StepPolicies policies_;
};

}  // namespace hasten::training
