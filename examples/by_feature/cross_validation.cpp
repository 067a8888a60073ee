// base.cpp in three folds: each trains a network of its own on two thirds of the data, and the test samples are judged
// by the mean of the folds' scores.
#include <hasten/data/dataset/subset.h>
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

// The scores of a fold's network for all test samples, on every rank.
torch::Tensor run(hasten::Accelerator& accelerator, int64_t batch_size, const std::vector<size_t>& fold) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] = accelerator.prepare(
      net, adam, hasten::data::loader<RandomSampler>(hasten::data::Subset(points(1000, 1), fold), batch_size),
      hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> scores;
  for (auto& batch : test) scores.push_back(accelerator.gather_for_metrics(model(batch.data)));
  return torch::cat(scores);
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  constexpr size_t kFolds = 3;
  const auto parts = hasten::data::split_indices(1000, {334, 333, 333}, 1);
  torch::Tensor sum;
  for (size_t left_out = 0; left_out < kFolds; ++left_out) {
    std::vector<size_t> fold;
    for (size_t i = 0; i < kFolds; ++i) {
      if (i != left_out) fold.insert(fold.end(), parts[i].begin(), parts[i].end());
    }
    const auto scores = run(accelerator, 20, fold);
    sum = sum.defined() ? sum + scores : scores;
  }
  const auto wanted = std::get<1>(points(250, 2).tensors()).to(accelerator.device());
  accelerator.print((sum / kFolds).argmax(1).eq(wanted).sum().item<int64_t>(), " of ", wanted.numel(), " right");
  return 0;
}
