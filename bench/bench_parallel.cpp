// The ways of training in parallel beside each other: the CNN of Fashion-MNIST with batch normalisation, one way a
// call.
//
// --way: one, data_parallel (two replicas in one process), ddp, ddp_amp (bfloat16), ddp_sync_bn, ddp_amp_sync_bn,
// local_sgd. Prints seconds and images a second of the second epoch (the first also pays for what is made once), the
// most memory of a rank, and accuracy.
#include <hasten/hasten.h>
#include <hasten/parallel/model/data_parallel.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "../examples/models/cnn.h"
#include "options.h"
#include "support.h"

namespace {

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

struct Ways {
  std::string way = "one";
  int64_t limit = 12'800;
  bool is(const char* word) const { return way.find(word) != std::string::npos; }
};

nlohmann::json measure(const Ways& o) {
  hasten::AcceleratorOptions options{.seed = 1};
  if (o.is("amp")) options.mixed_precision = hasten::Precision::kBf16;
  const hasten::Accelerator accelerator(options);
  const auto train_all = hasten::data::fashion_mnist(hasten::data::kFashionMnistRoot, true),
             test_all = hasten::data::fashion_mnist(hasten::data::kFashionMnistRoot, false);
  const auto first = [](const hasten::data::IdxDataset& set, int64_t count) {
    return hasten::data::StackedIdxDataset(
        {set.data().images.slice(0, 0, count), set.data().labels.slice(0, 0, count)});
  };
  auto net = models::fashion_cnn();
  hasten::parallel::channels_last(net);
  if (o.is("sync_bn")) hasten::parallel::convert_sync_batchnorm(net, accelerator.group());
  torch::optim::Adam adam(net->parameters(), 1e-3);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(first(train_all, o.limit), 64),
                          hasten::data::loader<SequentialSampler>(first(test_all, 5000), 500));
  std::optional<hasten::parallel::LocalSgd> local;
  if (o.is("local_sgd")) local.emplace(accelerator.local_sgd(model, {.num_steps = 8}));
  std::function<torch::Tensor(const torch::Tensor&)> forward = [&model = model](const torch::Tensor& x) {
    return model(x);
  };
  if (o.is("data_parallel"))
    forward = hasten::parallel::data_parallel(net.ptr(), {torch::Device(torch::kCPU), torch::Device(torch::kCPU)});
  double seconds = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    model->train();
    accelerator.wait_for_everyone();
    seconds = bench::time_ms([&, &train = train, &optimizer = optimizer] {
                for (auto& batch : train) {
                  optimizer.zero_grad();
                  accelerator.backward(torch::nn::functional::cross_entropy(forward(batch.data), batch.target));
                  optimizer.step();
                  if (local) local->step();
                }
                if (local && epoch == 1) local->finish();
                accelerator.wait_for_everyone();
              }) /
              1000;
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  hasten::data::Accuracy accuracy;
  for (auto& batch : test)
    accuracy.update(accelerator.without_padding(model(batch.data)), accelerator.without_padding(batch.target));
  const double found = accuracy.compute(accelerator.group());
  const double most =
      accelerator.reduce(torch::tensor(bench::memory_mb("VmHWM")), {.op = hasten::comm::ReduceOp::kMax}).item<double>();
  return {{"seconds", seconds},
          {"samples_per_s", static_cast<double>(o.limit) / seconds},
          {"peak_mb", most},
          {"accuracy", found},
          {"main", accelerator.is_main_process()}};
}

}  // namespace

int main(int argc, char** argv) {
  Ways o;
  CLI::App app("Times the ways of training in parallel.");
  app.add_option("--way", o.way)
      ->check(CLI::IsMember({"one", "data_parallel", "ddp", "ddp_amp", "ddp_sync_bn", "ddp_amp_sync_bn", "local_sgd"}));
  app.add_option("--limit", o.limit, "images of an epoch");
  bench::parse(app, argc, argv);
  const auto result = measure(o);
  if (result["main"]) std::cout << result << std::endl;
}
