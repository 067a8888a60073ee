// The shortest distributed program: an Accelerator and one reduction. What counts is when that is done, seen
// from the launcher's start; the clock is the system's, which the launcher's caller reads too.
//
// The peer is bench/peers/first_collective.py; start this with `hasten launch -n 2`.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

int main() {
  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  const auto sum = accelerator.reduce(torch::ones({1}));
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  if (sum.item<int>() != accelerator.num_processes()) throw std::runtime_error("the reduction is wrong");
  if (accelerator.is_main_process()) {
    nlohmann::json line;
    line["done_s"] = now.count();
    std::cout << line << std::endl;
  }
}
