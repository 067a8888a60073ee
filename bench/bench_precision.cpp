// What mixed precision costs and saves on this CPU: forward passes with living casts and with at::autocast's, a float16
// window (unscale, check, clip, AdamW, cast), a step of bfloat16 weights, a scope, and the bytes a parameter of each
// kind of weights.
//
// `bench_precision memory KIND` prints the bytes of one kind, since memory is a process's. The peer is
// bench/peers/precision.py.
#include <ATen/autocast_mode.h>
#include <malloc.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/precision/device_facts.h"
#include "options.h"
#include "support.h"

namespace {

using hasten::Accelerator;
using hasten::AcceleratorOptions;
using hasten::Precision;
using hasten::precision::Weights;

constexpr int64_t kSize = 1024;

torch::nn::Sequential linears(int number) {
  torch::nn::Sequential net;
  for (int i = 0; i < number; ++i) net->push_back(torch::nn::Linear(kSize, kSize));
  return net;
}

AcceleratorOptions settings(Precision precision) {
  AcceleratorOptions options;
  options.cpu = true;
  options.mixed_precision = precision;
  return options;
}

double median_ms(int repeats, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = -3; i < repeats; ++i) {
    const double ms = bench::time_ms(run);
    if (i >= 0) times.push_back(ms);
  }
  return bench::median(times);
}

// Forward passes of 6 Linear(1024), batch 16, as an evaluation does them.
double forward_ms(bool living) {
  auto options = settings(Precision::kBf16);
  options.precision.living_casts = living;
  Accelerator accelerator(options);
  auto net = linears(6);
  auto model = accelerator.prepare(net);
  const auto input = torch::randn({16, kSize});
  const torch::NoGradGuard no_grad;
  return median_ms(100, [&] { model(input); });
}

// Clip and step of 8.4 million parameters behind a scaled backward, and the casts of the next forward.
double window_ms() {
  Accelerator accelerator(settings(Precision::kFp16));
  auto net = linears(8);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto input = torch::randn({1, kSize}) * 1e-3;
  std::vector<double> times;
  for (int i = -3; i < 30; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(input).sum());
    const double ms = bench::time_ms([&, &model = model, &optimizer = optimizer] {
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      const torch::NoGradGuard no_grad;
      model(input);
    });
    if (i >= 0) times.push_back(ms);
  }
  return bench::median(times);
}

double scope_us() {
  Accelerator accelerator(settings(Precision::kBf16));
  torch::nn::Sequential net;
  for (int i = 0; i < 150; ++i) net->push_back(torch::nn::Linear(4, 4));
  auto model = accelerator.prepare(net);
  model(torch::ones({1, 4}));
  constexpr int kScopes = 1000;
  return 1e3 / kScopes * median_ms(20, [&] {
           for (int i = 0; i < kScopes; ++i) const auto scope = accelerator.autocast();
         });
}

// One small layer inside a scope, with living casts and with weights that are bfloat16 already and no scope; the
// difference is what the kernel of living casts costs.
double kernel_us() {
  Accelerator accelerator(settings(Precision::kBf16));
  torch::nn::Linear net(8, 8), low(8, 8);
  auto model = accelerator.prepare(net);
  low->to(torch::kBFloat16);
  const auto input = torch::ones({1, 8}, torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  constexpr int kCalls = 2000;
  const auto many = [&](torch::nn::Linear& layer) {
    return 1e3 / kCalls * median_ms(20, [&] {
             for (int i = 0; i < kCalls; ++i) layer(input);
           });
  };
  const double plain = many(low);
  model(torch::ones({1, 8}));
  const auto scope = accelerator.autocast();
  return many(net) - plain;
}

const std::vector<std::pair<std::string, Weights>> kKinds = {{"kParameter", Weights::kParameter},
                                                             {"kMaster", Weights::kMaster},
                                                             {"kSplit", Weights::kSplit},
                                                             {"kStochastic", Weights::kStochastic},
                                                             {"kKahan", Weights::kKahan}};

// Anonymous memory that a model, its optimizer and their steps have taken, a parameter; of 33.6 million parameters.
double bytes_a_parameter(const std::string& kind) {
  auto options = settings(kind == "float32" ? Precision::kNo : Precision::kBf16);
  for (const auto& [name, weights] : kKinds) {
    if (name == kind) options.precision.weights = weights;
  }
  if (kind.ends_with("half_moments")) options.precision = {.weights = Weights::kStochastic, .states = torch::kBFloat16};
  Accelerator accelerator(options);
  const auto input = torch::randn({1, kSize});
  {
    auto warm = linears(1);  // libraries' own memory
    warm->forward(input).sum().backward();
  }
  malloc_trim(0);
  const double before = bench::memory_mb("RssAnon");
  auto net = linears(32);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(input).sum());
    optimizer.step();
  }
  malloc_trim(0);
  return (bench::memory_mb("RssAnon") - before) * 1024 * 1024 / (32.0 * (kSize * kSize + kSize));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times mixed precision.");
  std::string kind;
  auto* const memory = app.add_subcommand("memory", "Prints the bytes a parameter of one kind of weights");
  std::vector<std::string> kinds{"float32", "kStochastic_half_moments"};
  for (const auto& [name, weights] : kKinds) kinds.push_back(name);
  memory->add_option("kind", kind, "The kind")->required()->check(CLI::IsMember(kinds));
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  nlohmann::json result;
  if (memory->parsed()) {
    result["bytes"] = bytes_a_parameter(kind);
  } else {
    result = {{"forward_living_ms", forward_ms(true)},
              {"forward_autocast_ms", forward_ms(false)},
              {"window_ms", window_ms()},
              {"scope_us", scope_us()},
              {"kernel_us", kernel_us()}};
  }
  std::cout << result.dump() << std::endl;
}
