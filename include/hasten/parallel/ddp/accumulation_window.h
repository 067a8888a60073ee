// AccumulationWindow: the backwards that make one step of a model's optimizer together, as a state machine.
//
// It decides whether gradients stay on their rank, and the multiplier and divisor of a weight. It also finds the
// mistakes of a training loop that a backward reveals. It holds no tensors; model_step.h carries out its decisions.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace hasten::parallel {

class AccumulationWindow {
 public:
  enum class State {
    kEmpty,                ///< between two steps
    kOpen,                 ///< a backward that does not end the window has begun; none before it has left anything
    kHeld,                 ///< backwards have ended without leaving gradients on this rank
    kHeldWithGradients,    ///< backwards have left gradients on this rank
    kEnding,               ///< the window's last backward has begun
    kEndingWithGradients,  ///< the same, and earlier ones have left gradients
  };
  /// Whether parameters are what the ranks agreed on last.
  enum class Values { kAgreed, kChanged, kChangedInside };
  enum class Warning { kGradientsLost, kGradientsLostAtEnd, kSteppedInside };

  /// The state of a model when a backward begins.
  struct WindowInput {
    /// Steps of prepared optimizers so far, and how often they forgot gradients.
    int64_t optimizer_calls = 0;
    bool ends_window = true;
    bool has_gradients = false;
    /// Parameters differ from those after the last held backward.
    bool values_changed = false;
  };

  // ---- Scopes.

  /// Every `true` holds gradients on their rank until a `false` has followed (no_sync).
  void set_sync(bool sync) noexcept { holds_ += sync ? -1 : 1; }
  /// The same for a window whose gradients are exchanged with every batch although the optimizer waits.
  void set_deferred(bool deferred) noexcept { deferrals_ += deferred ? 1 : -1; }
  bool holds_back() const noexcept { return holds_ > 0; }
  int num_holds() const noexcept { return holds_; }

  // ---- Backwards.

  State state() const noexcept { return state_; }
  /// Returns true if held backwards have been noted, so that `values_changed` has a meaning.
  bool is_held() const noexcept { return state_ == State::kHeld || state_ == State::kHeldWithGradients; }
  /// Returns true if the exchange under way ends the window.
  bool ends() const noexcept {
    return state_ == State::kEmpty || state_ == State::kEnding || state_ == State::kEndingWithGradients;
  }
  /// Returns what to warn of, each once in the life of the model.
  std::vector<Warning> begin_backward(const WindowInput& input);
  /// After a backward that did not end the window. Returns true if parameters are to be noted. If a model is held
  /// twice, something besides the window holds it (LocalSgd), and ranks differ on purpose.
  bool end_held_backward(int64_t optimizer_calls, bool has_gradients) noexcept;
  int64_t num_held() const noexcept { return num_held_; }
  /// Forgets held backwards: parameters or gradients were replaced on purpose.
  void forget() noexcept;
  void drop_gradients() noexcept {
    if (state_ == State::kHeldWithGradients) state_ = State::kHeld;
  }

  // ---- Weights.

  /// Adds the weight of a backward. Returns what the gradients that are there are multiplied by before it.
  std::optional<double> add_weight(double weight) noexcept;
  const std::optional<double>& weight() const noexcept { return weight_; }
  /// Takes the weights of all ranks, as a mean, from an exchange. Returns the divisor of gradients; nothing inside the
  /// window.
  std::optional<double> settle(double mean_weight) noexcept;
  void drop_weight() noexcept { weight_.reset(); }
  /// A later backward of the same batch may count still.
  void reopen() noexcept { settled_early_ = divided_by_; }

  // ---- Values.

  Values values() const noexcept { return values_; }
  void set_values(Values values) noexcept { values_ = values; }
  void note_changed(Values how) noexcept { values_ = how > values_ ? how : values_; }

 private:
  bool warn_once(Warning kind) noexcept {
    return !std::exchange(warned_[kind == Warning::kSteppedInside ? 1 : 0], true);
  }

  State state_ = State::kEmpty;
  Values values_ = Values::kAgreed;
  int holds_ = 0;
  int deferrals_ = 0;
  int64_t num_held_ = 0;
  int64_t optimizer_calls_ = 0;
  /// Gradients are sums, each times its weight.
  std::optional<double> weight_ = {};
  double divided_by_ = 0;
  std::optional<double> settled_early_ = {};
  bool warned_[2] = {false, false};
};

}  // namespace hasten::parallel
