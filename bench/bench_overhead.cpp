// What the front door costs a single process: an ordinary libtorch loop against the same loop with everything
// prepared (loader, model, optimizer, backward), on a step of about one millisecond.
//
// Both run in one process, an epoch each in turn, and who goes first changes each time, so that whatever else
// the machine does meets both alike.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

using torch::data::samplers::RandomSampler;
using torch::data::transforms::Stack;

constexpr int64_t kFeatures = 256, kWidth = 512, kClasses = 10, kBatch = 16;

class RandomVectors : public torch::data::datasets::Dataset<RandomVectors> {
 public:
  explicit RandomVectors(int64_t num_samples)
      : data_(torch::randn({num_samples, kFeatures})),
        targets_(torch::randint(kClasses, {num_samples}, torch::kLong)) {}

  torch::data::Example<> get(size_t index) override {
    return {data_[static_cast<int64_t>(index)], targets_[static_cast<int64_t>(index)]};
  }
  std::optional<size_t> size() const override { return data_.size(0); }

 private:
  torch::Tensor data_, targets_;
};

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(kFeatures, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kClasses));
}

template <class Loader, class Model, class Optimizer, class Backward>
void epoch(Loader& loader, Model& model, Optimizer& optimizer, const Backward& backward) {
  for (auto& batch : loader) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
    backward(loss);
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 100, rounds = 40;
  CLI::App app("Times the front door of one process.");
  app.add_option("--steps", steps, "of an epoch")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "epochs of each side")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const auto dataset = RandomVectors(steps * kBatch).map(Stack<>());

  auto plain_net = make_net();
  torch::optim::SGD plain_sgd(plain_net->parameters(), 0.01);
  auto plain_loader = torch::data::make_data_loader<RandomSampler>(dataset, kBatch);

  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto loader = accelerator.data_loader<RandomSampler>(dataset, kBatch);
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  const auto plain = [&] { epoch(*plain_loader, plain_net, plain_sgd, [](torch::Tensor& loss) { loss.backward(); }); };
  const auto prepared = [&, &model = model, &optimizer = optimizer] {
    epoch(loader, model, optimizer, [&](torch::Tensor& loss) { accelerator.backward(loss); });
  };
  plain();
  prepared();
  std::vector<double> plain_ms, hasten_ms;
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) plain_ms.push_back(bench::time_ms(plain) / steps);
    hasten_ms.push_back(bench::time_ms(prepared) / steps);
    if (round % 2 == 1) plain_ms.push_back(bench::time_ms(plain) / steps);
  }
  std::cout << nlohmann::json{{"hasten_ms", bench::median(hasten_ms)}, {"plain_ms", bench::median(plain_ms)}}
            << std::endl;
}
