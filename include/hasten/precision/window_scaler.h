// WindowScaler: a GradScaler driven once a window, as a policy of prepared optimizers' steps.
//
// A loss is multiplied by the scale in backward. At the window's end, on first need (unscale, clip, step), an
// optimizer's gradients are checked and divided. A step with gradients that are not finite is skipped. The scale moves
// once a window, when the next backward begins, for any number of optimizers. Gradients that another optimizer still
// holds scaled then follow the scale. After an exchange all ranks hold the same gradients, so nothing is sent for the
// decision.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hasten/precision/grad_scaler.h"
#include "hasten/training/step_policy.h"

namespace hasten::precision {

/// The scaler's questions to its Accelerator.
struct WindowScalerHooks {
  /// Whether gradients are exchanged now and optimizers step.
  std::function<bool()> ends_window = [] { return true; };
  /// Sums a count over all ranks, where some parameter of the optimizer was not exchanged whole. Collective there.
  std::function<int64_t(const torch::optim::Optimizer&, int64_t)> sum_overflows = [](const torch::optim::Optimizer&,
                                                                                     int64_t own) { return own; };
  /// A parameter's name, for messages; "" if it is not known.
  std::function<std::string(const at::Tensor&)> name_of = [](const at::Tensor&) { return std::string(); };
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

class WindowScaler : public training::StepPolicy {
 public:
  WindowScaler(const GradScalerOptions& options, WindowScalerHooks hooks);

  /// Begins a backward: the scale moves by the findings of the last window's steps. Returns the loss times the scale,
  /// in float32.
  /// Blocks: until the gradients' device has finished.
  at::Tensor begin_backward(const at::Tensor& loss);
  /// The same for backwards that are given the scale: returns it, 1 if losses are not scaled.
  double begin_backward();
  /// Optimizers that are to be known before their first step: clip finds a parameter's owner among them.
  void add(const std::shared_ptr<torch::optim::Optimizer>& optimizer);

  /// Divides the optimizer's gradients by the scale, and checks them. Nothing if that is done, or in the middle of a
  /// window. Collective: as WindowScalerHooks::sum_overflows. Blocks: until gradients are there.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// The same for all optimizers.
  void unscale_all();
  /// Optimizers that own any of these parameters.
  std::vector<torch::optim::Optimizer*> owners(const std::vector<at::Tensor>& parameters) const;
  /// Returns true if the optimizer's gradients are still multiplied by the scale.
  bool holds_scaled(const torch::optim::Optimizer& optimizer) const;
  /// Returns the scale that gradients of the present window have.
  double window_scale() const { return scaler_.scale(); }

  void before_step(training::StepContext& context) override;
  void after_step(training::StepContext& context) override;

  /// As if the update that is due had been made.
  /// Blocks: as scale.
  GradScalerState state() const;
  /// Throws: UsageError for a state that does not fit; nothing has changed then.
  void load_state(const GradScalerState& state);
  /// Makes the update that is due.
  void settle();
  const GradScaler& scaler() const noexcept { return scaler_; }

 private:
  struct Known {
    std::weak_ptr<torch::optim::Optimizer> optimizer;
    const torch::optim::Optimizer* address = nullptr;
    bool unscaled = false;
    bool found_inf = false;
    /// Stepped or skipped since its last backward: what gradients it has are old.
    bool done = false;
  };
  Known& known(const torch::optim::Optimizer& optimizer);
  void report_skips(torch::optim::Optimizer& optimizer);

  GradScaler scaler_;
  WindowScalerHooks hooks_;
  std::vector<Known> optimizers_;
  bool update_is_due_ = false;
  bool window_found_inf_ = false;
  int64_t skipped_in_a_row_ = 0;
  bool has_warned_ = false;
};

}  // namespace hasten::precision
