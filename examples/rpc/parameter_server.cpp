// A parameter server: the net lives there, trainers call its forward through an RRef, and each has its own autograd
// context.
//
// hasten launch --roles ps=1,trainer=2 rpc parameter_server [STEPS]. After torch.distributed's tutorial on a parameter
// server; the digits are made up, ten patterns with noise, so that nothing has to be downloaded.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>

#include "arguments.h"

struct DigitNet : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(first(x)), 2);
    x = torch::max_pool2d(torch::relu(second(x)), 2);
    return torch::log_softmax(last(x.flatten(1)), 1);
  }
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
  torch::nn::Conv2d second =
      register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16 * 7 * 7, 10));
};

struct Digits {
  torch::Tensor images, labels;
};
Digits make_digits(int64_t count, uint64_t seed) {
  auto patterns = torch::rand({10, 1, 28, 28}, at::make_generator<at::CPUGeneratorImpl>(1));
  auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto labels = torch::randint(10, {count}, random);
  return {patterns.index_select(0, labels) + 0.5 * torch::randn({count, 1, 28, 28}, random), labels};
}

class ParameterServer {
 public:
  torch::Tensor forward(const torch::Tensor& x) { return net_.forward(x); }
  // The gradients that a trainer's context has here.
  int64_t num_gradients(const hasten::rpc::AutogradContext& context) const {
    return static_cast<int64_t>(context.gradients().size());
  }
  std::vector<hasten::rpc::RRef<torch::Tensor>> parameter_rrefs() {
    std::vector<hasten::rpc::RRef<torch::Tensor>> all;
    const auto here = hasten::rpc::call();
    for (const auto& one : net_.parameters()) all.push_back(here.rref(one));
    return all;
  }

 private:
  DigitNet net_;
};

// Gives every trainer the same server.
class ServerPlace {
 public:
  explicit ServerPlace(std::shared_ptr<ParameterServer> server) : server_(std::move(server)) {}
  hasten::rpc::RRef<ParameterServer> get() const { return hasten::rpc::call().rref(server_); }

 private:
  std::shared_ptr<ParameterServer> server_;
};

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "parameter_server [STEPS]");
  const int64_t steps = arguments.number(1, 240);
  torch::manual_seed(0);
  torch::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  const auto place = std::make_shared<ServerPlace>(std::make_shared<ParameterServer>());
  hasten::rpc::Functions functions;
  functions.add<&ParameterServer::forward>()
      .add<&ParameterServer::parameter_rrefs>()
      .add<&ParameterServer::num_gradients>();
  functions.add("server", [place] { return place->get(); });
  hasten::rpc::Agent agent(process, functions);
  if (process.rank() > 0) {
    const auto server = agent.call<hasten::rpc::RRef<ParameterServer>>(0, "server");
    const hasten::rpc::DistributedOptimizer<torch::optim::SGD> optimizer(
        agent, server.sync<&ParameterServer::parameter_rrefs>(), torch::optim::SGDOptions(0.03));
    const auto digits = make_digits(32 * steps, static_cast<uint64_t>(process.rank()));
    for (int64_t step = 0; step < steps; ++step) {
      agent.autograd([&](hasten::rpc::AutogradContext& context) {
        const auto scores = server.sync<&ParameterServer::forward>(digits.images.slice(0, 32 * step, 32 * step + 32));
        context.backward({torch::nll_loss(scores, digits.labels.slice(0, 32 * step, 32 * step + 32))});
        if (server.sync<&ParameterServer::num_gradients>(context) != 6)
          throw std::runtime_error("gradients are missing");
        optimizer.step(context);
      });
    }
    const auto test = make_digits(500, 99);
    const auto guess = server.sync<&ParameterServer::forward>(test.images).argmax(1);
    if (process.rank() == 1)
      std::cout << "accuracy " << guess.eq(test.labels).to(torch::kFloat).mean().item<float>() << std::endl;
  }
  agent.shutdown();
  return 0;
}
