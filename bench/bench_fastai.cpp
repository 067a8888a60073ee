// A step of each of fastai's optimizers beside one of AdamW fused, on 8.4 million parameters in two layers and on 25
// thousand in 98 small tensors. All take turns, so that whatever else the machine does meets them alike.
#include <hasten/optim/fastai.h>
#include <hasten/optim/steps/optimizer_step.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "options.h"
#include "support.h"

namespace fastai = hasten::optim::fastai;

namespace {

constexpr const char* kAdamW = "adamw";

std::vector<torch::optim::OptimizerParamGroup> groups(const std::vector<int64_t>& sizes) {
  std::vector<torch::Tensor> params;
  for (const int64_t size : sizes) {
    params.push_back(torch::randn({size}).requires_grad_());
    params.back().mutable_grad() = torch::randn({size});
  }
  return {torch::optim::OptimizerParamGroup(params)};
}

// Medians of `steps` steps of each, in ms.
std::map<std::string, double> time_steps(const std::vector<int64_t>& sizes, int steps) {
  const std::vector<std::pair<std::string, fastai::Factory>> factories{
      {kAdamW, fastai::adam()},
      {"sgd", fastai::sgd({.mom = 0.9})},
      {"rms_prop", fastai::rms_prop({.mom = 0.9})},
      {"lookahead_adam", fastai::lookahead(fastai::adam())},
      {"radam", fastai::radam()},
      {"qhadam", fastai::qhadam()},
      {"larc", fastai::larc()},
      {"lamb", fastai::lamb()},
      {"ranger", fastai::ranger()}};
  std::vector<std::pair<std::string, std::shared_ptr<torch::optim::Optimizer>>> optimizers;
  for (const auto& [name, make] : factories) optimizers.emplace_back(name, make(groups(sizes), 1e-3));
  std::map<std::string, std::vector<double>> times;
  for (int step = -3; step < steps; ++step) {
    for (auto& [name, optimizer] : optimizers) {
      const double took = bench::time_ms([&, one = optimizer.get()] { hasten::optim::optimizer_step(*one); });
      if (step >= 0) times[name].push_back(took);
    }
  }
  std::map<std::string, double> medians;
  for (auto& [name, values] : times) medians[name] = bench::median(values);
  return medians;
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 24;
  CLI::App app("Times steps of fastai's optimizers.");
  app.add_option("--steps", steps, "measured; 10 times as many of the small ones")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  nlohmann::json out;
  out["large"] = time_steps({4'194'304, 4'194'304}, steps);
  out["small"] = time_steps(std::vector<int64_t>(98, 256), 10 * steps);
  std::cout << out << std::endl;
}
