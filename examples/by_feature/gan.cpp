// base.cpp with two networks and an optimizer each: a generator learns to make points that a discriminator
// cannot tell from those of the data.
#include <hasten/hasten.h>
#include <torch/torch.h>

using torch::softplus;
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
  return Sequential(Linear(8, 32), LeakyReLU(LeakyReLUOptions().negative_slope(0.2)), Linear(32, 8));
}

// The discriminator's answer, [samples]: above 0 for points of the data.
torch::Tensor realness(const torch::Tensor& outputs) {
  return outputs.sum(1);
}

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto generator = make_net(), discriminator = make_net();
  torch::optim::Adam generator_adam(generator->parameters(), 2e-3);
  torch::optim::Adam discriminator_adam(discriminator->parameters(), 2e-3);
  auto [make, judge, make_optimizer, judge_optimizer, train, test] =
      accelerator.prepare(generator, discriminator, generator_adam, discriminator_adam,
                          hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      const auto made = make(torch::randn_like(batch.data));
      judge_optimizer.zero_grad();
      accelerator.backward(softplus(-realness(judge(batch.data))).mean() +
                           softplus(realness(judge(made.detach()))).mean());
      judge_optimizer.step();

      make_optimizer.zero_grad();
      accelerator.backward(softplus(-realness(judge(made))).mean());
      make_optimizer.step();
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [real, fake] = accelerator.gather_for_metrics(
          std::pair(realness(judge(batch.data)), realness(judge(make(torch::randn_like(batch.data))))));
      correct += (real.gt(0).sum() + fake.lt(0).sum()).item<int64_t>();
      total += real.numel() + fake.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " told apart");
  }
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  run(accelerator, 20);
  return 0;
}
