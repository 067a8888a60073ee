// A step of a pipeline as a batch of the training loop. See accelerator/accelerator_state.h.
#include <ATen/ops/tensor.h>

#include "accelerator/accelerator_state.h"
#include "hasten/core/error.h"

namespace hasten {

// Gradients gather on this rank while the order runs. A backward of nothing ends the batch then as any other does: with
// the exchange over data(), windows and records.
at::Tensor AcceleratorState::forward_backward(const PipelineStep& step, std::optional<double> weight) {
  const Origin origin{"accelerator", process().rank(), process().world_size()};
  if (precision->scaler_state()) {
    throw UsageError(origin,
                     "forward_backward with fp16: losses of microbatches are not scaled. Use bf16 (mixed_precision = "
                     "Precision::kBf16).");
  }
  if (operations->is_joining()) operations->reject_in_join("forward_backward");
  const auto& pipeline = pipelines.only(models.modules());
  // The first weight of a window multiplies the gradients that are there, and these among them.
  const auto all = models.all();
  const bool multiplies = weight && !all.front()->step().window().weight();
  const double num_batches = static_cast<double>(accumulation.options().num_steps * num_turns());
  const double scale = multiplies ? 1.0 : weight.value_or(1.0 / num_batches);
  at::Tensor loss;
  {
    const parallel::NoSync held(all);
    loss = step(pipeline, scale);
  }
  backward(loss.detach().clone().set_requires_grad(true), {.weight = weight});
  if (layout.data().world_size() == 1) return loss;
  // Batches of ranks may count differently: the mean is that of their samples.
  const double counts = weight.value_or(1.0);
  const at::Tensor sums = at::tensor({loss.item<double>() * counts, counts}, at::kDouble);
  layout.data().all_reduce_(sums);
  return (sums[0] / sums[1].clamp_min(1e-300)).to(loss.scalar_type());
}

}  // namespace hasten
