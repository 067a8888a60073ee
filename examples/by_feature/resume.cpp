// base.cpp that is stopped in the middle of an epoch and goes on there: model, optimizer and the loaders'
// positions are in a folder. The end is the same as without the stop.
//
//   ./resume stop FOLDER          stops after 30 batches
//   ./resume go_on FOLDER         on any number of processes
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

void run(hasten::Accelerator& accelerator, int64_t batch_size, bool stop, const std::string& folder) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  if (!stop) accelerator.load_state(folder + "/state");

  int batches = 0;
  for (int epoch = static_cast<int>(train.state().epoch); epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      if (!stop || ++batches < 30) continue;
      accelerator.save_state(folder + "/state");
      accelerator.print("stopped in epoch ", epoch);
      return;
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "resume stop|go_on FOLDER");
  const std::string word = arguments.text(1);
  if (word != "stop" && word != "go_on") arguments.end("'" + word + "' is neither stop nor go_on");
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  run(accelerator, 20, word == "stop", arguments.text(2));
  return 0;
}
