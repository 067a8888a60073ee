// Mixed precision and memory format of a Learner's model.
#pragma once

#include <memory>
#include <optional>

#include "hasten/learner/callback.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/loss_scale_rule.h"
#include "hasten/precision/master_weights.h"

namespace hasten::learner {

enum class AmpMode { kFp16, kBf16 };

/// Runs forward and loss under autocast, with predictions in float32. With kFp16 the loss is scaled, and a step with
/// gradients that are not finite is cancelled. Also on the CPU, and in the world of an Accelerator that has no
/// precision of its own.
struct MixedPrecision : Callback {
  explicit MixedPrecision(AmpMode amp_mode = AmpMode::kFp16, precision::GradScalerOptions scaler = {})
      : mode(amp_mode), scaler_options(scaler) {}
  std::string_view name() const override { return "mixed_precision"; }
  int order() const override { return 10; }
  void before_fit(Learner& learn) override;
  void before_batch(Learner& learn) override;
  void after_pred(Learner& learn) override;
  void after_loss(Learner& learn) override;
  void before_backward(Learner& learn) override;
  void before_step(Learner& learn) override;
  void after_cancel_batch(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_fit(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;

  AmpMode mode;
  precision::GradScalerOptions scaler_options;
  /// Steps that were cancelled.
  int64_t skipped = 0;

 private:
  std::shared_ptr<precision::GradScaler> scaler_ = {};
  std::shared_ptr<precision::Autocast> scope_ = {};
};

/// fastai's to_fp16 and to_bf16, as callbacks: `learn.add(to_bf16())`.
inline MixedPrecision to_fp16(precision::GradScalerOptions scaler = {}) {
  return MixedPrecision(AmpMode::kFp16, scaler);
}
inline MixedPrecision to_bf16() {
  return MixedPrecision(AmpMode::kBf16);
}

/// The model in float16, but for its batch norms, and its inputs with it, for the length of a fit.
struct ModelToHalf : Callback {
  std::string_view name() const override { return "model_to_half"; }
  int order() const override { return -50; }
  void before_fit(Learner& learn) override;
  void before_batch(Learner& learn) override;
  void after_fit(Learner& learn) override;
};

struct NonNativeOptions {
  /// The scale where it is not dynamic.
  double loss_scale = 512;
  /// The scale starts at max_loss_scale, is divided by div_factor when gradients overflow, and multiplied after
  /// scale_wait good batches, which an overflow does not count anew. max_loss_scale is no limit.
  bool dynamic = true;
  double max_loss_scale = 16777216.0;
  double div_factor = 2;
  int64_t scale_wait = 500;
  /// Clips the norm of the masters' gradients.
  std::optional<double> clip = {};
};

/// Mixed precision without autocast: float32 masters are stepped in the place of float16 weights, and losses are
/// scaled. For a ModelToHalf; after a fit the model has the masters' values.
struct NonNativeMixedPrecision : Callback {
  explicit NonNativeMixedPrecision(NonNativeOptions own = {}) : options(own) {}
  std::string_view name() const override { return "non_native_mixed_precision"; }
  int order() const override { return 10; }
  void before_fit(Learner& learn) override;
  void after_pred(Learner& learn) override;
  void before_backward(Learner& learn) override;
  void before_step(Learner& learn) override;
  void after_step(Learner& learn) override;
  void after_fit(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;

  NonNativeOptions options;
  /// Steps that were cancelled.
  int64_t skipped = 0;

 private:
  std::shared_ptr<precision::MasterWeights> masters_ = {};
  precision::LossScaleRule rule_ = {};
  precision::LossScaleState scale_ = {};
};

/// The model's convolution weights and 4-dimensional inputs in channels-last memory; after_fit leaves them so.
struct ChannelsLast : Callback {
  std::string_view name() const override { return "channels_last"; }
  int order() const override { return -1; }
  void before_fit(Learner& learn) override;
  void before_batch(Learner& learn) override;
};

}  // namespace hasten::learner
