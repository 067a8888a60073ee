// What a loop that outlives dead ranks costs, and how soon it goes on: steps of about a millisecond on two ranks, in
// accelerator.survive. Under `hasten launch --survive` it is that loop, elsewhere the plain one.
//
// Rank 0 prints the median step, and the longest time between two steps. With --die rank 1 kills itself in the middle.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

using torch::data::samplers::SequentialSampler;

constexpr int64_t kFeatures = 256, kWidth = 512, kClasses = 10, kBatch = 16;

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(kFeatures, kWidth), torch::nn::BatchNorm1d(kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kClasses));
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 1000;
  bool dies = false;
  CLI::App app("Times a loop that outlives dead ranks.");
  app.add_option("--steps", steps, "of an epoch")->check(CLI::PositiveNumber);
  app.add_flag("--die", dies, "rank 1 kills itself in the middle");
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  const int64_t samples = steps * kBatch * accelerator.num_processes();
  const hasten::data::TensorDataset dataset(torch::randn({1024, kFeatures}).repeat({(samples + 1023) / 1024, 1}),
                                            torch::randint(kClasses, {(samples + 1023) / 1024 * 1024}, torch::kLong));
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer, train] =
      accelerator.prepare(net, sgd, hasten::data::loader<SequentialSampler>(dataset, kBatch));
  int64_t dies_at = dies && accelerator.rank() == 1 && std::getenv("HASTEN_REPLACES") == nullptr ? steps / 2 : 0;

  std::vector<double> times_ms;
  auto before = std::chrono::steady_clock::now();
  accelerator.survive({}, train, [&](auto& batch) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
    accelerator.backward(loss);
    if (--dies_at == 0) std::raise(SIGKILL);
    optimizer.step();
    const auto now = std::chrono::steady_clock::now();
    times_ms.push_back(std::chrono::duration<double, std::milli>(now - before).count());
    before = now;
  });
  if (!accelerator.is_main_process()) return 0;
  times_ms.erase(times_ms.begin(), times_ms.begin() + std::min<int64_t>(20, steps / 2));
  std::cout << nlohmann::json{{"step_ms", bench::median(times_ms)},
                              {"gap_ms", *std::max_element(times_ms.begin(), times_ms.end())}}
            << std::endl;
  return 0;
}
