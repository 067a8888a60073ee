// See plugins/step_monitor.h.
#include "plugins/step_monitor.h"

#include <torch/optim/optimizer.h>

namespace hasten {

void StepMonitor::note_loss(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) return;
  const at::Tensor value = loss.detach();
  loss_ = num_losses_ == 0 ? value : loss_ + value;
  ++num_losses_;
}

void StepMonitor::after_step(training::StepContext& context) {
  if (counted_ == nullptr) counted_ = &context.optimizer;
  if (counted_ != &context.optimizer) return;
  if (!trackers_.is_running()) trackers_.init(options_.project, {}, options_.init_kwargs);
  ++num_steps_;
  tracking::Values values;
  if (num_losses_ > 0) {
    values.emplace_back("Train/Samples/train_loss", loss_.item<double>() / static_cast<double>(num_losses_));
  }
  num_losses_ = 0;
  values.emplace_back("Train/Samples/lr", context.optimizer.param_groups().front().options().get_lr());
  trackers_.log(values, num_steps_ * options_.samples_per_step());
}

}  // namespace hasten
