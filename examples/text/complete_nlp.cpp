// nlp with all that a long run needs (Accelerate's complete_nlp_example): checkpoints by step or epoch, going on in
// mid-epoch, trackers, mixed precision.
//
//   complete_nlp --checkpointing_steps epoch --with_tracking --output_dir runs
//   complete_nlp --resume_from_checkpoint runs/epoch_0 --output_dir runs
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/models/bert.h>
#include <torch/torch.h>

#include "complete.h"
#include "data/paraphrases.h"
#include "support.h"
#include "text/pairs.h"

void train_complete_nlp(const example::PairOptions& o, const example::CompleteOptions& run) {
  const hasten::Accelerator accelerator(run.accelerator_options(o.seed));
  if (run.with_tracking)
    accelerator.init_trackers("complete_nlp", {{"lr", o.lr}, {"num_epochs", o.epochs}, {"batch_size", o.batch_size}});
  auto task = example::pair_task(o);
  auto adam = example::pair_optimizer(*task.net, o.lr);
  auto schedule = example::linear_schedule(adam, task.steps(o, accelerator.num_processes()), o.warm_up);
  auto [model, optimizer, scheduler, train, test] = accelerator.prepare(
      task.net, adam, *schedule,
      hasten::data::loader<torch::data::samplers::RandomSampler>(task.train, static_cast<size_t>(o.batch_size)),
      hasten::data::loader<torch::data::samplers::SequentialSampler>(task.test, 32));
  example::Checkpointing checkpoints(accelerator, run);
  for (int64_t epoch = checkpoints.resume(train); epoch < o.epochs; ++epoch) {
    model->train();
    hasten::data::Mean mean;
    for (auto& batch : train) {
      const auto loss = torch::nn::functional::cross_entropy(model(batch[0], batch[1], batch[2]), batch[3]);
      mean.update(loss.detach(), static_cast<double>(batch[3].size(0)));
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      checkpoints.after_step();
    }
    const auto found = example::judged(accelerator, model, test);
    const double loss = mean.compute(accelerator.group());
    accelerator.print("epoch ", epoch, ": ", found.text());
    if (run.with_tracking)
      accelerator.log({{"accuracy", found.accuracy}, {"f1", found.f1}, {"train_loss", loss}, {"epoch", epoch}},
                      checkpoints.step());
    checkpoints.after_epoch(epoch);
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  example::PairOptions o;
  example::CompleteOptions run;
  CLI::App app("BERT on pairs of sentences, with checkpoints and trackers.");
  o.add_to(app);
  run.add_to(app);
  return example::run(app, argc, argv, [&] { train_complete_nlp(o, run); });
}
