// See accelerator/step_record.h.
#include "accelerator/step_record.h"

#include <cmath>

namespace hasten {

void StepRecord::note_backward(const at::Tensor& loss, int64_t num_samples) {
  num_samples_ += num_samples;
  if (!recorder_ || !loss.defined() || loss.numel() != 1 || !loss.is_cpu()) return;
  if (!c10::isFloatingType(loss.scalar_type())) return;
  const auto value = loss.item<double>();
  recorder_->set_loss(value);
  if (std::isfinite(value)) return recorder_->clear_bad();
  recorder_->set_bad("loss");
}

void StepRecord::after_step(training::StepContext& context) {
  if (counted_ == nullptr) counted_ = &context.optimizer;
  if (!recorder_ || counted_ != &context.optimizer) return;
  recorder_->step(num_samples_);
  num_samples_ = 0;
}

}  // namespace hasten
