// A data-parallel step of one of the networks of models.h, and the peak memory of rank 0.
//
// The peer is bench/peers/ddp.py; start this with `hasten launch -n 2`.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "models.h"
#include "options.h"
#include "support.h"

int main(int argc, char** argv) {
  std::string model_name = "mlp";
  int64_t width = 1024, batch = 32;
  int steps = 200, warmup = 20;
  CLI::App app("Times data-parallel steps.");
  app.add_option("--model", model_name, "see models.h")->check(CLI::IsMember(bench::kModels));
  app.add_option("--width", width, "of the mlp's two hidden layers")->check(CLI::PositiveNumber);
  app.add_option("--batch", batch, "of each rank, for the mlp")->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "measured")->check(CLI::PositiveNumber);
  app.add_option("--warmup", warmup, "steps before them")->check(CLI::NonNegativeNumber);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  const double start_mb = bench::memory_mb("VmRSS");

  torch::manual_seed(0);
  const auto net = bench::work(model_name, width, batch).net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  torch::manual_seed(static_cast<uint64_t>(accelerator.rank() + 1));
  const auto [unused, data, target] = bench::work(model_name, width, batch);

  const auto run = [&](int count) {
    for (int step = 0; step < count; ++step) {
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(model(data), target));
      optimizer.step();
    }
  };
  run(warmup);
  accelerator.wait_for_everyone();
  const double step_ms = bench::time_ms([&] { run(steps); }) / steps;

  if (accelerator.is_main_process()) {
    std::cout << nlohmann::json{{"step_ms", step_ms}, {"peak_mb", bench::memory_mb("VmHWM")}, {"start_mb", start_mb}}
              << std::endl;
  }
}
