// A training step of a sharded model, beside FSDP2 and ZeRO-3: 8 x (Linear, ReLU), a GRU language model, a small
// transformer; SGD.
//
// Start it with `hasten launch -n 2`. The main process prints the mean step, the megabytes that its host sends in one,
// and the memory of all processes above their start: PSS, in which a page that several share counts once, and the
// largest RSS of a process.
#include <hasten/hasten.h>
#include <hasten/parallel/shard/sharding.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

struct GruLmImpl : torch::nn::Module {
  GruLmImpl() {
    register_module("embedding", embedding);
    register_module("gru", gru);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return head(std::get<0>(gru(embedding(tokens)))); }
  torch::nn::Embedding embedding{8000, 512};
  torch::nn::GRU gru{torch::nn::GRUOptions(512, 512).num_layers(2).batch_first(true)};
  torch::nn::Linear head{512, 8000};
};
TORCH_MODULE(GruLm);

struct TransformerLmImpl : torch::nn::Module {
  TransformerLmImpl() {
    register_module("embedding", embedding);
    register_module("encoder", encoder);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return head(encoder(embedding(tokens).transpose(0, 1))); }
  torch::nn::Embedding embedding{8000, 256};
  torch::nn::TransformerEncoder encoder{
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0.0)),
      4};
  torch::nn::Linear head{256, 8000};
};
TORCH_MODULE(TransformerLm);

torch::nn::Sequential linears(int64_t width) {
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct Options {
  std::string model = "linear";
  int64_t width = 1024, batch = 32;
  int stage = 3;
  int steps = 20, warmup = 3;
  /// Memory of all processes before the model was built.
  double start_pss_mb = 0;
};

template <class Net>
void measure(const hasten::Accelerator& accelerator, Net net, const torch::Tensor& input, const Options& options) {
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(model(input).pow(2).mean());
    optimizer.step();
  };
  for (int i = 0; i < options.warmup; ++i) step();
  accelerator.wait_for_everyone();
  const auto units = [&] {
    return accelerator.sharding() ? accelerator.sharding()->unit_counts() : hasten::parallel::UnitCounts{};
  };
  const double sent = bench::sent_mb();
  const auto before = units();
  const double time = bench::time_ms([&] {
    for (int i = 0; i < options.steps; ++i) step();
  });
  const double sent_a_step = (bench::sent_mb() - sent) / options.steps;
  const auto after = units();
  double parameters_mb = 0;
  for (const auto& parameter : net->parameters()) parameters_mb += static_cast<double>(parameter.nbytes()) / 1e6;
  const auto memory = accelerator.gather(torch::tensor({bench::pss_mb(), bench::memory_mb("VmHWM")}, torch::kDouble));
  accelerator.wait_for_everyone();
  if (!accelerator.is_main_process()) return;
  const auto all = memory.view({-1, 2});
  std::cout << nlohmann::json{{"step_ms", time / options.steps},
                              {"sent_mb", sent_a_step},
                              {"pulled_mb",
                               static_cast<double>(after.pulled_bytes - before.pulled_bytes) / 1e6 / options.steps},
                              {"fills", static_cast<double>(after.fills - before.fills) / options.steps},
                              {"parameters_mb", parameters_mb},
                              {"pss_mb", all.select(1, 0).sum().item<double>()},
                              {"start_pss_mb", options.start_pss_mb},
                              {"peak_mb", all.select(1, 1).max().item<double>()}}
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times a sharded training step.");
  app.add_option("--model", options.model)->check(CLI::IsMember({"linear", "gru", "transformer"}));
  app.add_option("--width", options.width);
  app.add_option("--batch", options.batch, "of the linear layers");
  app.add_option("--stage", options.stage, "0: Ddp")->check(CLI::Range(0, 3));
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::AcceleratorOptions settings{.cpu = true, .seed = 0};
  settings.shard.stage = static_cast<hasten::ShardStage>(options.stage);
  const hasten::Accelerator accelerator(settings);
  const double start = bench::pss_mb();
  const auto starts = accelerator.gather(torch::tensor({start}, torch::kDouble)).sum().item<double>();
  options.start_pss_mb = starts;

  if (options.model == "linear") {
    measure(accelerator, linears(options.width), torch::randn({options.batch, options.width}), options);
  } else if (options.model == "gru") {
    measure(accelerator, GruLm(), torch::randint(8000, {8, 32}), options);
  } else {
    measure(accelerator, TransformerLm(), torch::randint(8000, {8, 32}), options);
  }
}
