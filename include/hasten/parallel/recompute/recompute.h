// recompute: a part of forward whose activations are not kept, but computed again in backward (torch.utils.checkpoint).
//
// Tickets replace the tensors that operators inside the region save for backward. The first ticket that backward needs
// runs the region again, under the random state and the autocast state of its first run. The graph is that of a plain
// forward. So hooks, several backwards, autograd::grad and create_graph work as without it, and gradients have the same
// bits. The hooks for saved tensors are those of autograd's engine, from which recompute.cpp derives one.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace hasten::parallel {

namespace detail {

/// Operators of this thread save tickets while it exists.
class RecomputeScope {
 public:
  /// `again` runs the region once more; its result is dropped. Without gradients, and inside another region's second
  /// run, nothing is saved.
  explicit RecomputeScope(std::function<void()> again);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

/// Returns fn(inputs...). Activations inside are computed again in backward. `fn` is a function or a module holder; it
/// and the inputs are copied, and used again until the graph is gone. It must compute the same again: it may not change
/// its inputs, and parameters may not change before backward. Buffers that it changes (BatchNorm's running statistics)
/// change twice, as in PyTorch. Nests. Under NoGradGuard it is fn(inputs...).
/// Collective: no, unless fn is. Blocks: no. Throws: what fn throws. Backward throws UsageError if fn computes
/// something else than before, or a parameter has changed.
template <class F, class... Inputs>
auto recompute(F fn, Inputs... inputs) {
  const auto run = std::make_shared<std::function<decltype(fn(inputs...))()>>(
      [fn = std::move(fn), ... inputs = std::move(inputs)]() mutable { return fn(inputs...); });
  const detail::RecomputeScope scope([run] { (void)(*run)(); });
  return (*run)();
}

}  // namespace hasten::parallel
