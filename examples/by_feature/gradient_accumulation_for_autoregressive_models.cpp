// base.cpp as a language model on sequences of different lengths: four batches make a step, and each token counts
// alike, whichever batch and rank it is on. The weight of a batch is its number of tokens.
#include <hasten/hasten.h>
#include <torch/torch.h>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Sequences of 4 to 16 tokens of 12, [samples, 16], each token 5 more than the one before; -100 stands behind the end.
auto sequences(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto first = torch::randint(12, {samples, 1}, generator, torch::kLong),
             length = torch::randint(4, 17, {samples, 1}, generator, torch::kLong);
  const auto steps = torch::arange(17).unsqueeze(0);
  const auto all = (first + 5 * steps).remainder(12).masked_fill(steps >= length, -100);
  return hasten::data::TensorDataset(all.narrow(1, 0, 16).clamp_min(0), all.narrow(1, 1, 16).contiguous());
}

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Embedding(12, 32), ReLU(), Linear(32, 12));
}

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(sequences(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(sequences(250, 2), batch_size));

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      const auto scope = accelerator.accumulate(model);
      const auto num_tokens = batch.target.ne(-100).sum().item<double>();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data).transpose(1, 2), batch.target);
      accelerator.backward(loss, {.weight = num_tokens});
      optimizer.step();
      optimizer.zero_grad();
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(2), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.ne(-100).sum().item<int64_t>();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
}

int main() {
  hasten::Accelerator accelerator(
      {.loader = {.use_seedable_sampler = true}, .gradient_accumulation_steps = 4, .seed = 1});
  run(accelerator, 20);
  return 0;
}
