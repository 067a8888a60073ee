// Where a training step's time goes: the demo's CNN on batches of 64 images, as medians of its parts, and the
// page faults that it takes.
//
// Run it alone, or with `hasten launch -n 2`. HASTEN_TUNE_ALLOCATOR=0 and HASTEN_BACKEND=gloo show what those
// two change; what the exchange of gradients costs is the difference of backward between two processes and
// one.
#include <hasten/hasten.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "models.h"
#include "options.h"
#include "support.h"

namespace {

using torch::data::samplers::RandomSampler;

// As many images as Fashion-MNIST has, of noise: what they show does not change the time.
hasten::data::StackedIdxDataset images() {
  return hasten::data::StackedIdxDataset(
      {torch::randint(256, {60'000, 28, 28}, torch::kByte), torch::randint(10, {60'000}, torch::kLong)});
}

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 100, warmup = 20;
  CLI::App app("Times the parts of a training step.");
  app.add_option("--steps", steps, "measured")->check(CLI::Range(1, 400));
  app.add_option("--warmup", warmup, "steps before them")->check(CLI::NonNegativeNumber);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true, .seed = 0});
  auto net = bench::cnn().net;
  torch::optim::Adam adam(net->parameters(), 5e-3);
  auto [model, optimizer, train] = accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(images(), 64));

  std::map<std::string, std::vector<double>> parts;
  int64_t faults = 0;
  auto batch = train.begin();
  for (int step = -warmup; step < steps; ++step) {
    torch::Tensor loss;
    if (step == 0) parts.clear(), faults = page_faults();
    const double whole = bench::time_ms([&] {
      parts["zero_grad_ms"].push_back(bench::time_ms([&] { optimizer.zero_grad(); }));
      parts["forward_ms"].push_back(
          bench::time_ms([&] { loss = torch::nn::functional::cross_entropy(model(batch->data), batch->target); }));
      parts["backward_ms"].push_back(bench::time_ms([&] { accelerator.backward(loss); }));
      parts["optimizer_ms"].push_back(bench::time_ms([&] { optimizer.step(); }));
      parts["loader_ms"].push_back(bench::time_ms([&] { ++batch; }));
    });
    parts["step_ms"].push_back(whole);
  }
  faults = page_faults() - faults;

  if (accelerator.is_main_process()) {
    nlohmann::json result;
    for (const auto& [name, times] : parts) result[name] = bench::median(times);
    result["page_faults_a_step"] = faults / steps;
    result["backend"] = accelerator.group().backend_name();
    std::cout << result << std::endl;
  }
}
