// base.cpp on three axes of ranks (3D parallelism): stages of layers (pp), layers cut over ranks (tp), and other
// batches for what ranks are left (data parallelism). `three_d PP TP`, 2 and 2 by default: on 8 processes 2 of each.
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

  accelerator.print(net->ptr<torch::nn::LinearImpl>(0)->weight.size(0), " of 32 hidden units, on the first stage");
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      accelerator.forward_backward(
          batch, [&](const auto& part) { return torch::nn::functional::cross_entropy(model(part.data), part.target); });
      optimizer.step();
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
  const example::Arguments arguments(argc, argv, "three_d [PP [TP]]");
  const auto pp = static_cast<int>(arguments.number(1, 2)), tp = static_cast<int>(arguments.number(2, 2));
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true},
                                   .seed = 1,
                                   .parallel = {.dp_replicate = -1,
                                                .tp = tp,
                                                .pp = pp,
                                                .tensor_plan = {{"0", "colwise"}, {"2", "rowwise"}},
                                                .microbatches = 4}});
  run(accelerator, 20);
  return 0;
}
