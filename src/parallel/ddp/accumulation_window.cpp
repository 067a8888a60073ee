// See accumulation_window.h.
#include "hasten/parallel/ddp/accumulation_window.h"

namespace hasten::parallel {

std::vector<AccumulationWindow::Warning> AccumulationWindow::begin_backward(const WindowInput& input) {
  std::vector<Warning> warnings;
  const bool by_prepared = input.optimizer_calls != optimizer_calls_;
  // Gradients may be dropped on purpose before a window begins, but hardly all of them inside it. A prepared optimizer
  // drops them when a window is given up at its end, or at the head of its last batch.
  const bool lost = state_ == State::kHeldWithGradients && !input.has_gradients && (!by_prepared || input.ends_window);
  const auto kind = by_prepared ? Warning::kGradientsLostAtEnd : Warning::kGradientsLost;
  if (lost && warn_once(kind)) warnings.push_back(kind);
  // An optimizer that was not prepared steps with this rank's own gradients, or those of a part of the window. Others
  // may change parameters there (a clamp), as long as all ranks do it alike.
  if (is_held() && input.values_changed) {
    note_changed(by_prepared ? Values::kChanged : Values::kChangedInside);
    if (!by_prepared && warn_once(Warning::kSteppedInside)) warnings.push_back(Warning::kSteppedInside);
  }
  const bool offers = state_ == State::kHeldWithGradients && input.has_gradients;
  if (!input.ends_window || !input.has_gradients) settled_early_.reset();
  if (input.ends_window) {
    state_ = offers ? State::kEndingWithGradients : State::kEnding;
  } else if (!is_held()) {
    state_ = State::kOpen;
    num_held_ = 0;
  }
  return warnings;
}

bool AccumulationWindow::end_held_backward(int64_t optimizer_calls, bool has_gradients) noexcept {
  if (holds_ + deferrals_ != 1) return false;
  state_ = has_gradients ? State::kHeldWithGradients : State::kHeld;
  optimizer_calls_ = optimizer_calls;
  ++num_held_;
  return true;
}

void AccumulationWindow::forget() noexcept {
  if (is_held()) state_ = State::kOpen;
  num_held_ = 0;
}

std::optional<double> AccumulationWindow::add_weight(double weight) noexcept {
  std::optional<double> before;
  if (!weight_) {
    // Gradients from before the window count once, as they would without weights.
    before = settled_early_.value_or(weight);
    weight_ = std::exchange(settled_early_, std::nullopt).value_or(0);
  }
  *weight_ += weight;
  return before;
}

std::optional<double> AccumulationWindow::settle(double mean_weight) noexcept {
  if (!ends()) {
    weight_ = mean_weight;
    return std::nullopt;
  }
  weight_.reset();
  return divided_by_ = mean_weight;
}

}  // namespace hasten::parallel
