// See callbacks/precision.h.
#include "hasten/learner/callbacks/precision.h"

#include <ATen/ATen.h>

#include "hasten/learner/learner.h"
#include "hasten/parallel/model/channels_last.h"
#include "hasten/precision/outputs.h"

namespace hasten::learner {

void MixedPrecision::before_fit(Learner& learn) {
  if (learn.accelerator().mixed_precision() != Precision::kNo) {
    throw UsageError(Origin{"learner"}, "mixed_precision in a Learner whose Accelerator has a precision of its own; expected one of the two. "
                     "Remove the callback (to_fp32), or leave AcceleratorOptions::mixed_precision unset.");
  }
  skipped = 0;
  if (mode == AmpMode::kFp16) scaler_ = std::make_shared<precision::GradScaler>(scaler_options);
}

void MixedPrecision::before_batch(Learner& learn) {
  const auto dtype = mode == AmpMode::kFp16 ? c10::kHalf : c10::kBFloat16;
  scope_ = std::make_shared<precision::Autocast>(learn.accelerator().device().type(), precision::AutocastOptions{.dtype = dtype});
}

void MixedPrecision::after_pred(Learner& learn) {
  auto& outputs = learn.predictions();
  outputs = precision::to_float32(outputs);
}

void MixedPrecision::after_loss(Learner& /*learn*/) { scope_.reset(); }

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

void MixedPrecision::after_cancel_batch(Learner& /*learn*/) { scope_.reset(); }
void MixedPrecision::after_batch(Learner& /*learn*/) { scope_.reset(); }

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

void ChannelsLast::before_fit(Learner& learn) { parallel::channels_last(*learn.model().module()); }

void ChannelsLast::before_batch(Learner& learn) {
  for (auto& input : learn.inputs()) {
    if (input.dim() == 4) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  }
}

const Learner& Learner::to_fp16() const { return add(MixedPrecision(AmpMode::kFp16)); }
const Learner& Learner::to_bf16() const { return add(MixedPrecision(AmpMode::kBf16)); }
const Learner& Learner::to_fp32() const {
  if (find<MixedPrecision>() != nullptr) remove_cb("mixed_precision");
  return *this;
}
const Learner& Learner::to_channelslast() const { return add(ChannelsLast()); }
const Learner& Learner::to_contiguous() const {
  if (find<ChannelsLast>() != nullptr) remove_cb("channels_last");
  const at::NoGradGuard no_grad;
  for (auto& parameter : model().module()->parameters()) parameter.set_data(parameter.detach().contiguous());
  return *this;
}

}  // namespace hasten::learner
