// Fp16Optimizer: an optimizer over float32 masters of a half-precision model, with a loss scale of its own.
//
// Apex's FP16_Optimizer, for programs that hold the whole model in half precision and call `backward` on the optimizer.
// Names, defaults and the order of calls are Apex's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hasten/precision/loss_scale_rule.h"
#include "hasten/precision/master_weights.h"

namespace hasten::precision {

/// Apex's DynamicLossScaler.
struct DynamicLossArgs {
  double init_scale = 4294967296.0;
  double scale_factor = 2.0;
  int64_t scale_window = 1000;
};

struct Fp16OptimizerOptions {
  double static_loss_scale = 1.0;
  bool dynamic_loss_scale = false;
  DynamicLossArgs dynamic_loss_args = {};
  /// Logs each overflow.
  bool verbose = true;
};

struct Fp16OptimizerState {
  LossScaleState loss_scaler = {};
  bool dynamic_loss_scale = false;
  bool overflow = false;
  /// The masters of half-precision parameters; the optimizer's own state is the caller's to save.
  std::vector<at::Tensor> fp32_from_fp16 = {};
};

class Fp16Optimizer {
 public:
  /// The optimizer must outlive it, and steps masters from here on.
  /// Throws: UsageError for scales or windows out of range.
  explicit Fp16Optimizer(torch::optim::Optimizer& optimizer, const Fp16OptimizerOptions& options = {});

  /// Backward of loss times scale; then update_master_grads, unless it is left to the caller (several losses).
  /// Collective: as backward of the loss. Blocks: as that. Throws: what backward throws.
  void backward(const at::Tensor& loss, bool update_master_grads = true, bool retain_graph = false);
  /// Checks for overflow (dynamic scales), then copies gradients to the masters and divides them by the scale.
  /// Blocks: until gradients are there.
  void update_master_grads();
  /// Clips the masters' gradients to a norm; returns the norm before, or -1 after an overflow.
  /// Blocks: until gradients are there.
  double clip_master_grads(double max_norm, double norm_type = 2.0);
  /// Returns the masters' gradients, one list a parameter group; nothing after an overflow.
  std::vector<std::vector<at::Tensor>> inspect_master_grad_data() const;

  /// Steps the masters and rounds them into the model. After an overflow only the scale moves. With a closure, which
  /// calls zero_grad and backward of this object, it is repeated while it overflows.
  /// Throws: the exceptions of the optimizer and the closure.
  at::Tensor step(const std::function<at::Tensor()>& closure = nullptr);
  void zero_grad(bool set_to_none = false) { masters_.zero_grad(set_to_none); }

  double loss_scale() const noexcept { return state_.scale; }
  void set_loss_scale(double scale) noexcept { state_.scale = scale; }
  bool overflow() const noexcept { return overflow_; }
  const MasterWeights& masters() const noexcept { return masters_; }
  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }

  Fp16OptimizerState state() const;
  /// Throws: UsageError for another number or other sizes of masters; nothing has changed
  /// then.
  void load_state(const Fp16OptimizerState& state);

 private:
  void update_scale();
  bool gradients_are_finite() const;

  torch::optim::Optimizer* optimizer_;
  Fp16OptimizerOptions options_;
  LossScaleRule rule_;
  LossScaleState state_;
  MasterWeights masters_;
  bool overflow_ = false;
};

}  // namespace hasten::precision
