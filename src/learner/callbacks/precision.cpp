// See learner/callbacks/precision.h.
#include "hasten/learner/callbacks/precision.h"

#include <ATen/ATen.h>

#include "hasten/learner/learner.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/parallel/model/channels_last.h"
#include "hasten/precision/convert.h"
#include "hasten/precision/outputs.h"

namespace hasten::learner {

void MixedPrecision::before_fit(Learner& learn) {
  if (learn.accelerator().mixed_precision() != Precision::kNo) {
    throw UsageError(
        Origin{"learner"},
        "mixed_precision in a Learner whose Accelerator has a precision of its own; expected one of the two. "
        "Remove the callback (to_fp32), or leave AcceleratorOptions::mixed_precision unset.");
  }
  skipped = 0;
  if (mode == AmpMode::kFp16) scaler_ = std::make_shared<precision::GradScaler>(scaler_options);
}

void MixedPrecision::before_batch(Learner& learn) {
  const auto dtype = mode == AmpMode::kFp16 ? c10::kHalf : c10::kBFloat16;
  scope_ = std::make_shared<precision::Autocast>(learn.accelerator().device().type(),
                                                 precision::AutocastOptions{.dtype = dtype});
}

void MixedPrecision::after_pred(Learner& learn) {
  auto& outputs = learn.predictions();
  outputs = precision::to_float32(outputs);
}

void MixedPrecision::after_loss(Learner& /*learn*/) {
  scope_.reset();
}

void MixedPrecision::before_backward(Learner& learn) {
  if (scaler_) learn.loss_grad() = scaler_->scale(learn.loss_grad());
}

void MixedPrecision::before_step(Learner& learn) {
  if (!scaler_) return;
  scaler_->unscale_(learn.opt());
  const bool overflow = scaler_->found_inf(learn.opt());
  scaler_->update();
  if (!overflow) return;
  ++skipped;
  learn.cancel(Scope::kStep);
}

void MixedPrecision::after_cancel_batch(Learner& /*learn*/) {
  scope_.reset();
}
void MixedPrecision::after_batch(Learner& /*learn*/) {
  scope_.reset();
}

void MixedPrecision::after_fit(Learner& /*learn*/) {
  scope_.reset();
  scaler_.reset();
}

core::Value MixedPrecision::state() const {
  if (!scaler_) return {};
  const auto state = scaler_->state();
  return core::Value::map({{"scale", state.scale}, {"growth_tracker", state.growth_tracker}, {"skipped", skipped}});
}

void MixedPrecision::load_state(const core::Value& state) {
  if (!scaler_) return;
  auto own = scaler_->state();
  own.scale = state.at("scale").as_double();
  own.growth_tracker = state.at("growth_tracker").as_int();
  scaler_->load_state(own);
  skipped = state.at("skipped").as_int();
}

void ModelToHalf::before_fit(Learner& learn) {
  precision::convert(*learn.model().module(), at::kHalf, {.keep_batchnorm = true});
}

void ModelToHalf::before_batch(Learner& learn) {
  for (auto& input : learn.inputs()) {
    if (input.is_floating_point()) input = input.to(at::kHalf);
  }
}

void ModelToHalf::after_fit(Learner& learn) {
  precision::convert(*learn.model().module(), at::kFloat);
}

void NonNativeMixedPrecision::before_fit(Learner& /*learn*/) {
  rule_ = precision::LossScaleRule::of(precision::LossScaleKind::kFastai);
  rule_.init_scale = options.dynamic ? options.max_loss_scale : options.loss_scale;
  rule_.growth_factor = options.div_factor;
  rule_.backoff_factor = 1 / options.div_factor;
  rule_.growth_interval = options.scale_wait;
  rule_.dynamic = options.dynamic;
  scale_ = precision::initial_state(rule_);
  skipped = 0;
}

void NonNativeMixedPrecision::after_pred(Learner& learn) {
  auto& outputs = learn.predictions();
  outputs = precision::to_float32(outputs);
}

void NonNativeMixedPrecision::before_backward(Learner& learn) {
  // Not in before_fit, which a validation has as well.
  if (!masters_) masters_ = std::make_shared<precision::MasterWeights>(learn.opt());
  learn.loss_grad() = learn.loss_grad().to(at::kFloat) * scale_.scale;
}

void NonNativeMixedPrecision::before_step(Learner& learn) {
  masters_->gradients_to_masters();
  std::vector<at::Tensor> parameters = masters_->all(), gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return;
  const auto scalar = at::TensorOptions(gradients.front().device()).dtype(at::kFloat);
  const at::Tensor found = at::zeros({}, scalar);
  precision::unscale_gradients_(gradients, at::full({}, 1 / scale_.scale, scalar), found, /*allow_fp16=*/false);
  const bool overflow = found.item<float>() > 0;
  scale_ = precision::next(scale_, overflow, rule_);
  if (overflow && rule_.dynamic) {
    ++skipped;
    masters_->zero_grad(/*set_to_none=*/true);
    learn.cancel(Scope::kStep);
  } else if (options.clip) {
    parallel::clip_gradients_(parameters, *options.clip);
  }
}

void NonNativeMixedPrecision::after_step(Learner& /*learn*/) {
  masters_->to_model();
  masters_->zero_grad(/*set_to_none=*/true);
}

void NonNativeMixedPrecision::after_fit(Learner& /*learn*/) {
  if (!masters_) return;
  masters_->restore();
  masters_->to_model();  // exact where ModelToHalf has made it float32 again
  masters_.reset();
}

core::Value NonNativeMixedPrecision::state() const {
  return core::Value::map({{"scale", scale_.scale}, {"tracker", scale_.tracker}, {"skipped", skipped}});
}

void NonNativeMixedPrecision::load_state(const core::Value& state) {
  scale_.scale = state.at("scale").as_double();
  scale_.tracker = state.at("tracker").as_int();
  skipped = state.at("skipped").as_int();
}

void ChannelsLast::before_fit(Learner& learn) {
  parallel::channels_last(*learn.model().module());
}

void ChannelsLast::before_batch(Learner& learn) {
  for (auto& input : learn.inputs()) {
    if (input.dim() == 4) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  }
}

const Learner& Learner::to_fp16(const precision::GradScalerOptions& scaler) const {
  return add(MixedPrecision(AmpMode::kFp16, scaler));
}
const Learner& Learner::to_bf16() const {
  return add(MixedPrecision(AmpMode::kBf16));
}
const Learner& Learner::to_fp32() const {
  if (find<MixedPrecision>() != nullptr) remove_cb("mixed_precision");
  return *this;
}
const Learner& Learner::to_non_native_fp16() const {
  return add(ModelToHalf()), add(NonNativeMixedPrecision());
}
const Learner& Learner::to_non_native_fp32() const {
  if (find<ModelToHalf>() != nullptr) remove_cb("model_to_half");
  if (find<NonNativeMixedPrecision>() != nullptr) remove_cb("non_native_mixed_precision");
  return *this;
}
const Learner& Learner::to_channelslast(bool use_amp) const {
  return to_channelslast(use_amp, AmpMode::kFp16);
}
const Learner& Learner::to_channelslast(bool use_amp, AmpMode mode) const {
  if (find<ChannelsLast>() == nullptr) add(ChannelsLast());
  if (use_amp && find<MixedPrecision>() == nullptr) add(MixedPrecision(mode));
  return *this;
}
const Learner& Learner::to_contiguous(bool to_fp32) const {
  if (find<ChannelsLast>() != nullptr) remove_cb("channels_last");
  const at::NoGradGuard no_grad;
  for (auto& parameter : model().module()->parameters()) parameter.set_data(parameter.detach().contiguous());
  for (auto& buffer : model().module()->buffers()) buffer.set_data(buffer.detach().contiguous());
  return to_fp32 ? this->to_fp32() : *this;
}

}  // namespace hasten::learner
