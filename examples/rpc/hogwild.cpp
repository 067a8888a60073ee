// HogWild: all processes of a host step one copy of the parameters, without a lock.
//
// hasten launch -n 4 rpc hogwild [STEPS]. After torch's example mnist_hogwild; the data is made up.
#include <hasten/parallel/share/share_parameters.h>
#include <hasten/process/process.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "hogwild [STEPS]");
  const int64_t steps = arguments.number(1, 200);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(20, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
  const auto directions = torch::randn({20, 4});
  hasten::parallel::share_parameters_(*net, process.group());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + process.rank()));
  for (int64_t step = 0; step < steps / process.world_size(); ++step) {
    const auto x = torch::randn({32, 20}, random);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(x), x.mm(directions).argmax(1)).backward();
    optimizer.step();
  }
  process.wait_for_everyone();
  if (process.is_main_process()) {
    const torch::NoGradGuard no_grad;
    const auto x = torch::randn({2000, 20}, at::make_generator<at::CPUGeneratorImpl>(5));
    const auto right = net->forward(x).argmax(1).eq(x.mm(directions).argmax(1));
    std::cout << "accuracy " << right.to(torch::kFloat).mean().item<float>() << " with " << process.world_size()
              << " processes" << std::endl;
  }
  process.wait_for_everyone();
  return 0;
}
