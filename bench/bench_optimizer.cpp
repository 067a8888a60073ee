// A step of Adam, fused as prepared optimizers step and as torch::optim steps by itself, on 8.4 million
// parameters in two layers and on 25 thousand in 98 small tensors, where the calls count. The two kinds of
// step take turns, so that whatever else the machine does meets both alike.
//
// The peer is bench/peers/optimizer.py.
#include <hasten/optim/steps/optimizer_step.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

std::vector<torch::Tensor> parameters(const std::vector<int64_t>& sizes) {
  std::vector<torch::Tensor> params;
  for (const int64_t size : sizes) {
    params.push_back(torch::randn({size}).requires_grad_());
    params.back().mutable_grad() = torch::randn({size});
  }
  return params;
}

// Medians of `steps` steps of either kind, in ms.
std::pair<double, double> time_steps(const std::vector<int64_t>& sizes, int steps) {
  torch::optim::Adam fused(parameters(sizes), 1e-3), plain(parameters(sizes), 1e-3);
  std::vector<double> fused_ms, plain_ms;
  for (int step = -3; step < steps; ++step) {
    const double mine = bench::time_ms([&] { hasten::optim::optimizer_step(fused); });
    const double theirs = bench::time_ms([&] { hasten::optim::optimizer_step(plain, {.fused = false}); });
    if (step < 0) continue;
    fused_ms.push_back(mine);
    plain_ms.push_back(theirs);
  }
  return {bench::median(fused_ms), bench::median(plain_ms)};
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 30;
  CLI::App app("Times steps of Adam.");
  app.add_option("--steps", steps, "measured; 10 times as many of the small ones")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const auto [large, large_plain] = time_steps({4'194'304, 4'194'304}, steps);
  const auto [small, small_plain] = time_steps(std::vector<int64_t>(98, 256), 10 * steps);
  std::cout << nlohmann::json{{"large", large},
                              {"large_libtorch", large_plain},
                              {"small", small},
                              {"small_libtorch", small_plain}}
            << std::endl;
}
