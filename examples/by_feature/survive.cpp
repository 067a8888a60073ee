// base.cpp that goes on when processes die. Each is replaced and takes the state of another, and the result is that of
// a run in which none has died.
//
//   hasten launch -n 2 --survive 20 ./survive          # and kill -9 one of its processes
//   hasten launch -n 2 --survive 20 ./survive 30       # rank 1 kills itself in its 30th batch
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>

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

void run(hasten::Accelerator& accelerator, int64_t batch_size, int64_t dies_at) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  const auto step = [&](auto& batch) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
    accelerator.backward(loss);
    if (--dies_at == 0) std::raise(SIGKILL);
    optimizer.step();
  };
  const auto evaluate = [&](int64_t epoch) {
    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  };
  const auto report = accelerator.survive({.epochs = 3}, train, step, evaluate);
  accelerator.print(report.num_steps, " steps; the first weight is ", net->parameters()[0][0][0].item<double>());
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "survive [BATCH]");
  const int64_t last = arguments.number(1, 0);
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  const bool dies = accelerator.rank() == 1 && std::getenv("HASTEN_REPLACES") == nullptr;
  run(accelerator, 20, dies ? last : 0);
  return 0;
}
