// ResNet50 in two halves on two workers, with micro-batches that overlap; distributed autograd and one optimizer over
// both.
//
// hasten launch --roles master=1,stage=2 rpc pipeline_resnet50 [IMAGES [SIZE [BATCHES]]]; the tutorial of
// torch.distributed has 3 batches of 120 images of 128 x 128, in 1, 2, 4 and 8 micro-batches. With a SIZE of 32 or less
// the last maps are 1 x 1, and batch norm refuses a micro-batch of one image.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>

#include "arguments.h"

namespace nn = torch::nn;

nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct Bottleneck : nn::Module {
  Bottleneck(int64_t in, int64_t width, int64_t stride) {
    body =
        register_module("body", nn::Sequential(convolution(in, width, 1, 1), nn::BatchNorm2d(width), nn::ReLU(),
                                               convolution(width, width, 3, stride), nn::BatchNorm2d(width), nn::ReLU(),
                                               convolution(width, 4 * width, 1, 1), nn::BatchNorm2d(4 * width)));
    if (stride != 1 || in != 4 * width)
      shortcut = register_module("shortcut",
                                 nn::Sequential(convolution(in, 4 * width, 1, stride), nn::BatchNorm2d(4 * width)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut ? shortcut->forward(x) : x));
  }
  nn::Sequential body{nullptr}, shortcut{nullptr};
};

void add_layer(nn::Sequential& all, int64_t& in, int64_t width, int64_t blocks, int64_t stride) {
  for (int64_t i = 0; i < blocks; ++i) {
    all->push_back(Bottleneck(in, width, i == 0 ? stride : 1));
    in = 4 * width;
  }
}

// One half of the net. Its own lock: micro-batches come from several threads, and batch norm counts them in turn.
class Stage {
 public:
  explicit Stage(int64_t half) {
    torch::manual_seed(static_cast<uint64_t>(half));
    int64_t in = 64;
    if (half == 0) {
      layers_->push_back(convolution(3, 64, 7, 2));
      layers_->push_back(nn::BatchNorm2d(64));
      layers_->push_back(nn::ReLU());
      layers_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
      add_layer(layers_, in, 64, 3, 1);
      add_layer(layers_, in, 128, 4, 2);
    } else {
      in = 512;
      add_layer(layers_, in, 256, 6, 2);
      add_layer(layers_, in, 512, 3, 2);
      layers_->push_back(nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({1, 1})));
      layers_->push_back(nn::Flatten());
      layers_->push_back(nn::Linear(2048, 1000));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers_->forward(x); }
  std::vector<hasten::rpc::RRef<torch::Tensor>> parameter_rrefs() {
    std::vector<hasten::rpc::RRef<torch::Tensor>> all;
    const auto here = hasten::rpc::call();
    for (const auto& one : layers_->parameters()) all.push_back(here.rref(one));
    return all;
  }

 private:
  nn::Sequential layers_;
};

// The second stage fetches its input from the first by itself: the master's messages carry references only.
torch::Tensor forward_from(const hasten::rpc::RRef<Stage>& stage, const hasten::rpc::RRef<torch::Tensor>& input) {
  return stage.sync<&Stage::forward>(input.to_here());
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "pipeline_resnet50 [IMAGES [SIZE [BATCHES]]]");
  const int64_t images = arguments.number(1, 120), size = arguments.number(2, 128),
                batches = arguments.number(3, 3);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  hasten::rpc::Functions functions;
  functions.add_class<Stage, int64_t>().add<&Stage::forward>({.where = hasten::rpc::Where::kPerObject});
  functions.add<&Stage::parameter_rrefs>().add<&forward_from>();
  hasten::rpc::Agent agent(process, functions, {.timeout_s = 600});
  if (process.is_main_process()) {
    for (const int64_t splits : {1, 2, 4, 8}) {
      if (images % splits != 0) continue;
      const auto first = agent.remote<Stage>(1, 0), second = agent.remote<Stage>(2, 1);
      auto parameters = first.sync<&Stage::parameter_rrefs>();
      for (const auto& one : second.sync<&Stage::parameter_rrefs>()) parameters.push_back(one);
      const hasten::rpc::DistributedOptimizer<torch::optim::SGD> optimizer(agent, parameters,
                                                                           torch::optim::SGDOptions(0.05));
      torch::manual_seed(7);
      const auto start = std::chrono::steady_clock::now();
      double loss = 0;
      for (int64_t batch = 0; batch < batches; ++batch) {
        const auto input = torch::randn({images, 3, size, size});
        const auto labels = torch::zeros({images, 1000}).scatter_(1, torch::randint(1000, {images, 1}), 1);
        agent.autograd([&](hasten::rpc::AutogradContext& context) {
          std::vector<hasten::rpc::Future<torch::Tensor>> outputs;
          for (const auto& part : input.chunk(splits))
            outputs.push_back(agent.async<&forward_from>(2, second, first.remote<&Stage::forward>(part.contiguous())));
          const auto error = torch::mse_loss(torch::cat(hasten::rpc::wait_all(outputs)), labels);
          context.backward({error});
          optimizer.step(context);
          loss = error.item<double>();
        });
      }
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      std::cout << "splits " << splits << " seconds " << time.count() << " loss " << loss << std::endl;
    }
  }
  agent.shutdown();
  return 0;
}
