// base.cpp as a language model whose sequences are cut over all ranks (context parallelism): each has eight of sixteen
// tokens on two, and attention gathers the keys and values of the others.
#include <hasten/hasten.h>
#include <hasten/models/gpt2.h>
#include <torch/torch.h>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Sequences of 16 tokens of 12, [samples, 16], each token 5 more than the one before, and the token behind each.
auto sequences(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto first = torch::randint(12, {samples, 1}, generator, torch::kLong);
  const auto all = (first + 5 * torch::arange(17).unsqueeze(0)).remainder(12);
  return hasten::data::TensorDataset(all.narrow(1, 0, 16).contiguous(), all.narrow(1, 1, 16).contiguous());
}

auto make_net() {
  return hasten::models::Gpt2(
      hasten::models::Gpt2Config{.vocab_size = 12, .n_positions = 16, .n_embd = 32, .n_layer = 1, .n_head = 4});
}

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(sequences(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(sequences(250, 2), batch_size));

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto logits = model(batch.data, at::Tensor(), nullptr);
      auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten());
      accelerator.backward(loss);
      optimizer.step();
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto tokens = model(batch.data, at::Tensor(), nullptr).argmax(2);
      const auto [found, labels] = accelerator.gather_for_metrics(std::pair(tokens, batch.target));
      correct += found.eq(labels).sum().item<int64_t>();
      total += labels.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1, .parallel = {.cp = -1}});
  run(accelerator, 20);
  return 0;
}
