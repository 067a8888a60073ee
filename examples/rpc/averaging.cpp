// Parameter averaging: each process trains its own copy, and every n steps all copies become their mean.
//
// hasten launch -n 2 rpc averaging [STEPS]. After torch's PeriodicModelAverager; in a loop with an Accelerator
// local_sgd does the same (examples/by_feature/local_sgd.cpp).
#include <hasten/process/process.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "averaging [STEPS]");
  const int64_t steps = arguments.number(1, 120), period = 4, warmup_steps = 20;
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  torch::manual_seed(1);
  torch::nn::Linear net(10, 1);
  const auto weights = torch::randn({10, 1});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + process.rank()));
  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto x = torch::randn({16, 10}, random);
    optimizer.zero_grad();
    const auto error = torch::mse_loss(net(x), x.mm(weights));
    error.backward();
    optimizer.step();
    // In the warm-up after every step, as PeriodicModelAverager does with gradients.
    if (step < warmup_steps || step % period == period - 1) {
      const torch::NoGradGuard no_grad;
      for (const auto& one : net->parameters()) process.group().all_reduce_(one.data(), hasten::comm::ReduceOp::kMean);
    }
    loss = error.item<double>();
  }
  if (process.is_main_process()) std::cout << "loss " << loss << std::endl;
  return 0;
}
