// BERT on pairs of sentences: do they mean the same (Accelerate's nlp_example, on MRPC)?
//
//   nlp --data MRPC --model bert-base-cased-folder     config.json, vocab.txt and weights of transformers
//   hasten launch -n 2 nlp                             verses of two translations, a small BERT from scratch
//
// AdamW 2e-5, 3 epochs, seed 42, batches of 16 (larger ones are accumulated), 32 in evaluation, a linear rate behind
// 100 steps of warm-up. complete_nlp has checkpoints and trackers as well.
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/models/bert.h>
#include <torch/torch.h>

#include "data/paraphrases.h"
#include "support.h"
#include "text/pairs.h"

void train_nlp(const example::PairOptions& o) {
  constexpr int64_t kMostAtOnce = 16;
  const int64_t accumulation = o.batch_size > kMostAtOnce ? o.batch_size / kMostAtOnce : 1;
  const hasten::Accelerator accelerator({.gradient_accumulation_steps = accumulation, .seed = o.seed});
  auto task = example::pair_task(o);
  auto adam = example::pair_optimizer(*task.net, o.lr);
  auto schedule = example::linear_schedule(adam, task.steps(o, accelerator.num_processes()), o.warm_up);
  auto [model, optimizer, scheduler, train, test] =
      accelerator.prepare(task.net, adam, *schedule,
                          hasten::data::loader<torch::data::samplers::RandomSampler>(
                              task.train, static_cast<size_t>(o.batch_size / accumulation)),
                          hasten::data::loader<torch::data::samplers::SequentialSampler>(task.test, 32));
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    model->train();
    for (auto& batch : train) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(torch::nn::functional::cross_entropy(model(batch[0], batch[1], batch[2]), batch[3]));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch ", epoch, ": ", example::judged(accelerator, model, test).text());
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  example::PairOptions o;
  CLI::App app("BERT on pairs of sentences.");
  o.add_to(app);
  return example::run(app, argc, argv, [&] { train_nlp(o); });
}
