// base.cpp with metrics that each rank counts for itself: only the counts travel, and the result is the same
// for any number of ranks.
#include <hasten/hasten.h>
#include <torch/torch.h>

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

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
    }

    const torch::NoGradGuard no_grad;
    hasten::data::Accuracy top_2({.top_k = 2});
    hasten::data::ConfusionMatrix matrix({.num_classes = 4});
    for (auto& batch : test) {
      const auto [scores, wanted] = accelerator.without_padding(std::pair(model(batch.data), batch.target));
      top_2.update(scores, wanted);
      matrix.update(scores, wanted);
    }
    const auto confusion = matrix.compute(accelerator.group());
    const double top_2_accuracy = top_2.compute(accelerator.group());
    accelerator.print("epoch ", epoch, ": accuracy ", confusion.accuracy(), ", top-2 ", top_2_accuracy, ", F1 ",
                      confusion.macro_f1());
  }
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  run(accelerator, 20);
  return 0;
}
