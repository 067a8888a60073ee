// Loading and running a large model: 60 x (Linear(2048, 2048), ReLU), 1 GB in six safetensors files, one thread,
// batch 1.
//
// `bench_big_model FOLDER` uses the folder that peers/big_model.py has saved. It prints milliseconds to build the model
// empty, to load and dispatch it, of the first and further forwards, and of the same model in memory of its own. With
// --limit MB the weights may take only that much.
#include <hasten/offload/load/dispatch.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : torch::nn::Module("Block") {
    fc = register_module("fc", torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::relu(fc(x)); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int num_layers, int64_t width) {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < num_layers; ++i) layers->push_back(Block(width));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Net);

template <class Model>
double forward_ms(const Model& model, const at::Tensor& x, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(bench::time_ms([&] { model(x); }));
  return bench::median(times);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  int64_t limit_mb = 0;
  int num_layers = 60, count = 9;
  bool in_memory = false;
  CLI::App app;
  app.add_option("folder", folder)->required();
  app.add_option("--limit", limit_mb);
  app.add_option("--layers", num_layers);
  app.add_option("--count", count);
  app.add_flag("--in-memory", in_memory);
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  using namespace hasten;
  nlohmann::json out;
  const double start_mb = bench::memory_mb("VmRSS");

  offload::DispatchOptions options{.device_map = offload::DeviceMap{{"", "disk"}},
                                   .no_split_module_classes = {"Block"}};
  if (limit_mb > 0) options.max_memory = {{"cpu", limit_mb * 1000000}};
  const at::Tensor x = torch::randn({1, 2048});
  Net net{nullptr};
  // 250 layers of 10 million parameters: 2.5 billion, of which none has memory.
  out["empty_2500m_ms"] = bench::time_ms([&] { offload::empty_weights([] { return Net(250, 3162); }); });
  out["empty_ms"] = bench::time_ms([&] { net = offload::empty_weights([&] { return Net(num_layers, 2048); }); });
  std::optional<offload::Dispatched<Net>> model;
  out["load_ms"] = bench::time_ms([&] { model.emplace(offload::load_checkpoint_and_dispatch(net, folder, options)); });
  out["first_ms"] = bench::time_ms([&] { (*model)(x); });
  out["forward_ms"] = forward_ms(*model, x, count);
  out["over_start_mb"] = bench::memory_mb("VmHWM") - start_mb;
  out["reads"] = model->stream_counts().reads;
  if (in_memory) {
    // The same weights in memory of their own; the two take turns.
    Net plain(num_layers, 2048);
    offload::load_checkpoint_in_model(*plain, folder);
    const auto call = [&](const at::Tensor& input) { return plain->forward(input); };
    std::vector<double> ratios, times;
    for (int i = 0; i < count; ++i) {
      const double mapped = forward_ms(*model, x, 1), heap = forward_ms(call, x, 1);
      ratios.push_back(mapped / heap);
      times.push_back(heap);
    }
    out["in_memory_ms"] = bench::median(times);
    out["to_in_memory"] = bench::median(ratios);
  }
  std::cout << out.dump() << std::endl;
}
