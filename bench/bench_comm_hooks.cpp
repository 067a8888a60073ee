// Comm hooks: what a data-parallel step of an MLP 512 - width - width - 10 sends over TCP, and how long it
// takes, with each hook.
//
// Start it with `HASTEN_BACKEND=gloo hasten launch -n 2`: shared memory has no wire to count on.
#include <hasten/core/env.h>
#include <hasten/parallel/compress/power_sgd.h>
#include <hasten/parallel/ddp/ddp.h>
#include <hasten/process/process.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "../tests/support/wire.h"
#include "models.h"
#include "options.h"
#include "support.h"

namespace {

struct Cost {
  double megabytes;
  double ms;
};

Cost cost_of(const hasten::parallel::CommHook& hook, const hasten::process::Process& process, int64_t width,
             int steps) {
  torch::manual_seed(0);
  auto work = bench::mlp(width, 32);
  const hasten::parallel::Ddp ddp(*work.net, process.group(), {.comm_hook = hook});
  const auto run = [&](int count) {
    for (int step = 0; step < count; ++step) {
      work.net->zero_grad();
      torch::nn::functional::cross_entropy(work.net->forward(work.data), work.target).backward();
    }
  };
  run(3);
  process.wait_for_everyone();
  const auto before = hasten::testing::wire();
  const double ms = bench::time_ms([&] { run(steps); });
  process.wait_for_everyone();
  return {static_cast<double>(hasten::testing::bytes_between(before, hasten::testing::wire())) / steps / 1e6,
          ms / steps};
}

}  // namespace

int main(int argc, char** argv) {
  int64_t width = 1024;
  int steps = 50;
  CLI::App app("Counts what comm hooks send.");
  app.add_option("--width", width, "of the two hidden layers")->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "measured")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);

  using namespace hasten::parallel;
  torch::set_num_threads(1);
  const hasten::process::Process process({.cpu = true});
  const std::pair<const char*, CommHook> hooks[] = {
      {"none", {}},
      {"bf16", bf16_compress()},
      {"power_sgd_1", power_sgd({.start_iteration = 0})},
      {"power_sgd_4", power_sgd({.matrix_approximation_rank = 4, .start_iteration = 0})}};
  nlohmann::json result;
  for (const auto& [name, hook] : hooks) {
    const Cost cost = cost_of(hook, process, width, steps);
    result[name] = {{"mb", cost.megabytes}, {"ms", cost.ms}};
  }
  if (process.is_main_process()) std::cout << result << std::endl;
}
