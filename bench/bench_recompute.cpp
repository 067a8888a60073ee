// A training step of a small transformer with every layer computed again in backward, beside the same step without;
// what an operator of a region costs; and, with --memory, the peak above the start of either.
//
// One process, one thread. Steps alternate, so that drift of the machine is in neither.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "models.h"
#include "options.h"
#include "support.h"

namespace {

struct Options {
  std::string memory;
  int64_t batch = 8, length = 64;
  int steps = 15, warmup = 3;
};

/// Steps of a network, as it is or with its encoder layers as regions.
struct Training {
  explicit Training(const Options& options) : work(bench::transformer(options.batch, options.length)) {}

  void step(bool again) {
    sgd.zero_grad();
    at::Tensor x = work.data;
    for (auto& layer : *work.net) {
      const bool region = again && layer.ptr()->as<bench::EncoderLayerImpl>() != nullptr;
      x = region ? hasten::parallel::recompute([&] { return layer.forward(x); }) : layer.forward(x);
    }
    torch::nn::functional::cross_entropy(x, work.target).backward();
    sgd.step();
  }

  bench::Work work;
  torch::optim::SGD sgd{work.net->parameters(), 0.01};
};

/// Microseconds an operator on a tensor of four elements, forward alone, or forward and backward.
double operator_us(bool again, bool backward) {
  constexpr int kOperators = 500;
  const auto weight = torch::ones({4}).requires_grad_(), input = torch::ones({4});
  const auto chain = [&] {
    at::Tensor x = input;
    for (int i = 0; i < kOperators; ++i) x = x * weight;
    return x;
  };
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) {
    times.push_back(bench::time_ms([&] {
      const auto x = again ? hasten::parallel::recompute(chain) : chain();
      if (backward) x.sum().backward();
    }));
  }
  return 1000 * bench::median(times) / kOperators;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times a training step whose layers are computed again.");
  app.add_option("--memory", options.memory, "only the peak of one side")->check(CLI::IsMember({"plain", "recompute"}));
  app.add_option("--batch", options.batch);
  app.add_option("--length", options.length);
  app.add_option("--steps", options.steps);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  const double start = bench::memory_mb("VmRSS");
  Training training(options);
  if (!options.memory.empty()) {
    for (int i = 0; i < 3; ++i) training.step(options.memory == "recompute");
    std::cout << nlohmann::json{{"over_start_mb", bench::memory_mb("VmHWM") - start}} << std::endl;
    return 0;
  }
  for (int i = 0; i < options.warmup; ++i) {
    for (const bool again : {false, true}) training.step(again);
  }
  std::vector<double> plain, again;
  for (int i = 0; i < options.steps; ++i) {
    plain.push_back(bench::time_ms([&] { training.step(false); }));
    again.push_back(bench::time_ms([&] { training.step(true); }));
  }
  std::cout << nlohmann::json{{"plain_ms", bench::median(plain)},
                              {"recompute_ms", bench::median(again)},
                              {"record_us", operator_us(true, false) - operator_us(false, false)},
                              {"operator_us", operator_us(true, true) - operator_us(false, true)}}
            << std::endl;
}
