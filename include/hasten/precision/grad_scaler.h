// GradScaler: losses are multiplied so that float16 gradients do not vanish, and gradients divided again before a
// step (torch.amp.GradScaler).
//
// libtorch has the kernels but no class. This is the raw form, for loops without an Accelerator: scale, unscale_,
// step, update in PyTorch's order and with its errors. The scale and its count stay on the gradients' device, so update
// waits for nothing. Accelerator drives one of these once a window (window_scaler.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "hasten/comm/nested/nested.h"
#include "hasten/precision/loss_scale_rule.h"
#include "hasten/training/stateful.h"

namespace hasten::precision {

/// Accelerate's GradScalerKwargs, with its defaults, limits, and the rule by which the scale moves.
struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  /// False: every call passes its argument through.
  bool enabled = true;
  std::optional<double> min_scale = {};
  std::optional<double> max_scale = {};
  /// kTorch, or another system's rule (loss_scale_rule.h), with its hysteresis. Under kDeepSpeed an overflow at
  /// min_scale ends the run.
  LossScaleKind rule = LossScaleKind::kTorch;
  int64_t hysteresis = 1;
  bool consecutive_hysteresis = false;
  /// Number of skipped steps in a row after which an Accelerator ends the run with an error; 0: never.
  int64_t give_up_after = 100;
  /// unscale_ takes float16 gradients. For optimizers over float32 masters only.
  bool allow_fp16_gradients = false;
};

/// PyTorch's state_dict by the same names: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker.
/// `enabled` false is PyTorch's empty state.
struct GradScalerState {
  bool enabled = true;
  double scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;
};

/// A value handle; copies are the same scaler. Optimizers are known by address until update().
class GradScaler {
 public:
  /// Throws: UsageError for factors, interval or scales out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns the loss (or outputs) times the scale. Its dtype is kept.
  at::Tensor scale(const at::Tensor& outputs) const;
  /// The same for every tensor of a structure (comm/nested/nested.h).
  template <class T>
    requires(!std::convertible_to<const T&, at::Tensor>)
  T scale(const T& outputs) const {
    return comm::map_tensors(outputs, [&](const at::Tensor& tensor) { return scale(tensor); });
  }

  /// Divides the gradients of the optimizer's parameters by the scale in place, and notes whether any is not finite.
  /// Throws: UsageError before any scale(), for gradients that were never scaled; for a
  /// second call before update, or after step; for float16 gradients, naming the parameter's index.
  void unscale_(torch::optim::Optimizer& optimizer) const;

  /// Unscales if that is not done, then steps if all gradients are finite. Returns true if it stepped.
  /// Blocks: until the gradients' device has finished. Throws: UsageError before any scale(), for a
  /// second call before update, or an optimizer without any gradient; the exceptions of the optimizer.
  bool step(torch::optim::Optimizer& optimizer) const;

  /// Returns true if unscale_ found a gradient that is not finite.
  /// Blocks: until the gradients' device has finished. Throws: UsageError before unscale_.
  bool found_inf(torch::optim::Optimizer& optimizer) const;

  /// Moves the scale by what the steps since the last update found, or sets it. A scale never becomes 0 or infinite.
  /// Throws: UsageError before any scale(); if nothing was unscaled or stepped and no scale
  /// is given; for a scale that is not finite or not above 0.
  void update(std::optional<double> new_scale = {}) const;

  /// Returns the scale; 1 if disabled. Blocks: until the device has finished.
  double scale() const;
  /// Steps without overflow since the scale last moved. Blocks: as scale.
  int64_t growth_tracker() const;
  bool is_enabled() const noexcept;
  const GradScalerOptions& options() const noexcept;

  /// Blocks: as scale.
  GradScalerState state() const;
  /// Returns the state as update_by would leave it. Blocks: as scale.
  GradScalerState state_after(bool found_inf) const;
  /// Throws: UsageError for the state of a disabled scaler, or values out of range; then
  /// nothing has changed.
  void load_state(const GradScalerState& state) const;

  // ---- For code that drives the scaler once a window instead of once an optimizer.

  /// Returns the scale as a float32 scalar tensor on a device; made there at the first call.
  at::Tensor scale_tensor(c10::Device device) const;
  /// Moves the scale by `found_inf`, a float32 scalar tensor, above 0 for an overflow.
  /// Blocks: no under kTorch's rule, else until the device has finished.
  void update_by(const at::Tensor& found_inf) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Divides gradients by the scale in place. `inverse_scale` and `found_inf` are float32 scalar tensors on the
/// gradients' device. Each device and dtype takes one kernel. Sparse gradients are divided by their values. Follows
/// PyTorch's unscale_.
/// Throws: UsageError for a float16 gradient unless allowed.
void unscale_gradients_(const std::vector<at::Tensor>& gradients, const at::Tensor& inverse_scale,
                        const at::Tensor& found_inf, bool allow_fp16);

}  // namespace hasten::precision

/// PyTorch's keys; an empty map for a disabled scaler.
template <>
struct hasten::training::StateCodec<hasten::precision::GradScalerState> {
  static State encode(const precision::GradScalerState& state);
  static precision::GradScalerState decode(const State& state);
};
