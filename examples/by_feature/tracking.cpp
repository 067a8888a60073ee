// base.cpp whose losses and accuracy go to TensorBoard's files and the run's journal, which `hasten board FOLDER`
// shows.
//
//   ./tracking FOLDER
#include <hasten/hasten.h>
#include <torch/torch.h>

#include "arguments.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Points around four centres, [samples, 8], and the centre of each.
auto points(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto centres = torch::randn({4, 8}, at::detail::createCPUGenerator(0));
  const auto targets = torch::randint(4, {samples}, generator, torch::kLong);
  return hasten::data::TensorDataset(2 * centres.index_select(0, targets) + torch::randn({samples, 8}, generator),
                                     targets);
}

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(8, 32), ReLU(), Linear(32, 4));
}

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  accelerator.init_trackers("tracking", {{"learning_rate", 1e-2}, {"batch_size", batch_size}});
  int64_t step = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      accelerator.log({{"train/loss", loss}}, step++);
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.log({{"test/accuracy", static_cast<double>(correct) / static_cast<double>(total)}}, step);
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "tracking FOLDER");
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true},
                                   .seed = 1,
                                   .log_with = {"tensorboard"},
                                   .project = {.project_dir = arguments.text(1)}});
  run(accelerator, 20);
  return 0;
}
