// base.cpp with a learning rate that rises over a fifth of the steps and then falls along a cosine. The scheduler
// counts steps of the optimizer, and the loader's size() is that of a rank, so they need no change for more processes.
// The rate itself is scaled with their number.
#include <hasten/hasten.h>
#include <torch/torch.h>

using hasten::optim::LrScaling::kSquareRoot;
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
  torch::optim::Adam adam(net->parameters(), hasten::optim::scale_lr(1e-2, accelerator.world_size(), kSquareRoot));
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));
  const auto num_steps = static_cast<int64_t>(3 * train.size()), warm_up = num_steps / 5;
  hasten::optim::WarmupLR schedule(
      adam, {.total_iters = warm_up,
             .after = hasten::optim::recipe<hasten::optim::CosineAnnealingLR>({.T_max = num_steps - warm_up})});
  auto scheduler = accelerator.prepare(schedule);

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right, rate ", scheduler.rates()[0]);
  }
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  run(accelerator, 20);
  return 0;
}
