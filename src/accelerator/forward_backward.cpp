// A step of a pipeline as a batch of the training loop. See accelerator/accelerator_state.h.
#include <ATen/ops/tensor.h>

#include "accelerator/accelerator_state.h"

namespace hasten {

// Gradients gather on this rank while the order runs. A backward of nothing ends the batch then as any other does: with
// the exchange over data(), windows and records. With fp16 losses of parts are multiplied by the scale as well.
at::Tensor AcceleratorState::forward_backward(const PipelineStep& step, std::optional<double> weight) {
  const auto& pipeline = pipelines.only(models.modules());
  // As backward has it.
  const bool joins = operations->is_joining();
  if (joins && layout.sizes().pp > 1 && options.parallel.order == plan::OrderKind::kAuto) {
    operations->reject_in_join("forward_backward with the order kAuto, which all ranks measure together");
  }
  if (!weight && (joins || gradients->has_joined_window())) weight = 1.0;
  // The first weight of a window multiplies the gradients that are there, and these among them.
  const auto all = models.all();
  const bool multiplies = weight && !all.front()->step().window().weight();
  const double num_batches = static_cast<double>(accumulation.options().num_steps * num_turns());
  const double scale = multiplies ? 1.0 : weight.value_or(1.0 / num_batches);
  const double loss_scale = precision->begin_scaled();
  at::Tensor loss;
  {
    const parallel::NoSync held(all);
    loss = step(pipeline, scale * loss_scale);
  }
  backward(loss.detach().clone().set_requires_grad(true), {.weight = weight});
  if (layout.data().world_size() == 1) return loss;
  // Batches of ranks may count differently: the mean is that of their samples.
  const double counts = weight.value_or(1.0);
  at::Tensor sums = at::tensor({loss.item<double>() * counts, counts}, at::kDouble);
  if (joins) {
    sums = operations->reduce(sums, {.op = comm::ReduceOp::kSum}, comm::Group::Site::current());
  } else {
    layout.data().all_reduce_(sums);
  }
  return (sums[0] / sums[1].clamp_min(1e-300)).to(loss.scalar_type());
}

}  // namespace hasten
